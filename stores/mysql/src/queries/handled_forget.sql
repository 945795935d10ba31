-- Forgets that a consumer has handled messages: their ids in hexadecimal digits (JSON), consumer.
delete a
from json_table(?, '$[*]' columns (id char(32) path '$')) j
straight_join outbox_handled a on a.consumer = ? and a.id = unhex(j.id)
