-- Removes scheduled messages: ids in hexadecimal digits (JSON).
delete s
from json_table(?, '$[*]' columns (id char(32) path '$')) j
straight_join outbox_scheduled s on s.id = unhex(j.id)
