-- Ids of scheduled messages, of those in hexadecimal digits (JSON).
select s.id
from json_table(?, '$[*]' columns (id char(32) path '$')) j
straight_join outbox_scheduled s on s.id = unhex(j.id)
