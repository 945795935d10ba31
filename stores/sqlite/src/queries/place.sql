-- Gives rows their bucket. ?1: pairs of position and bucket (JSON).
update outbox_message
set bucket = placed.bucket
from (select value ->> 0 as position, value ->> 1 as bucket from json_each(?1)) placed
where outbox_message.position = placed.position and outbox_message.bucket is null
