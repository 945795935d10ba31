-- Keeps parked messages that were delivered: now, pairs of position and id in hexadecimal digits (JSON), route, topic, key.
insert into outbox_history
    (delivered_at, position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload,
     occurred_at, appended_at)
select ?, p.position, p.stripe, p.number, p.id, p.route, p.topic, p.`key`, p.order_key, p.event_type, p.schema_version, p.content_type, p.headers,
       p.payload, p.occurred_at, p.appended_at
from json_table(?, '$[*]' columns (position bigint path '$[0]', id char(32) path '$[1]')) j
straight_join outbox_parked p on p.route = ? and p.topic = ? and p.order_key = ? and p.position = j.position
where p.id = unhex(j.id)
