-- Notes that a consumer handles messages, those that it has not handled: consumer, which call this is, and for each an array of id, topic and, if
-- it has one, key, in hexadecimal digits (JSON).
-- All of these: a session's sql_select_limit holds where no limit is named.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by, topic, `key`)
select ?, unhex(j.id), timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, unhex(j.topic), unhex(j.name)
from json_table(?, '$[*]' columns (id char(32) path '$[0]', topic varchar(510) path '$[1]', name varchar(510) path '$[2]')) j
limit 18446744073709551615
