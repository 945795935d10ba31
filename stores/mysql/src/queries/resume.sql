-- Removes parked messages of a key: pairs of position and id in hexadecimal digits (JSON), route, topic, key.
delete p
from json_table(?, '$[*]' columns (position bigint path '$[0]', id char(32) path '$[1]')) j
straight_join outbox_parked p on p.route = ? and p.topic = ? and p.order_key = ? and p.position = j.position
where p.id = unhex(j.id)
