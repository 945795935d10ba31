-- Copies messages of a key to the parked ones: now, pairs of position and id in hexadecimal digits (JSON), route, topic, key. One that is there,
-- as after a restore of the hot table alone, stays as it is.
insert into outbox_parked
    (route, topic, order_key, position, stripe, number, id, `key`, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, parked_at)
select m.route, m.topic, m.order_key, m.position, m.stripe, m.number, m.id, m.`key`, m.event_type, m.schema_version, m.content_type, m.headers,
       m.payload, m.occurred_at, m.appended_at, ?
from json_table(?, '$[*]' columns (position bigint path '$[0]', id char(32) path '$[1]')) j
straight_join outbox_message m on m.route = ? and m.position = j.position
where m.id = unhex(j.id) and m.topic = ? and m.order_key = ?
on duplicate key update outbox_parked.position = outbox_parked.position
