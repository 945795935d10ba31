-- Which of these messages a call has noted: ids in hexadecimal digits (JSON), consumer, which call.
-- All of these: a session's sql_select_limit holds where no limit is named.
select a.id
from json_table(?, '$[*]' columns (id char(32) path '$')) j
straight_join outbox_handled a on a.consumer = ? and a.id = unhex(j.id)
where a.noted_by = ?
limit 18446744073709551615
