-- Removes delivered rows, each by its position and id: pairs of position and id in hexadecimal digits (JSON), the route.
delete m
from json_table(?, '$[*]' columns (position bigint path '$[0]', id char(32) path '$[1]')) j
straight_join outbox_message m on m.route = ? and m.position = j.position
where m.id = unhex(j.id)
