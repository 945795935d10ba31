-- Notes that a consumer handles messages, those that it has not handled: consumer, which call this is, ids in hexadecimal digits (JSON).
-- All of these: a session's sql_select_limit holds where no limit is named.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by)
select ?, unhex(j.id), timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?
from json_table(?, '$[*]' columns (id char(32) path '$')) j
limit 18446744073709551615
