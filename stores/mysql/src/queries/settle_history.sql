-- Keeps delivered rows, before settle removes them. Parameters as there.
insert into outbox_history
    (delivered_at, position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload,
     occurred_at, appended_at)
select timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)),
       m.position, m.stripe, m.number, m.id, m.route, m.topic, m.`key`, m.order_key, m.event_type, m.schema_version, m.content_type, m.headers,
       m.payload, m.occurred_at, m.appended_at
from json_table(?, '$[*]' columns (position bigint path '$[0]', id char(32) path '$[1]')) j
straight_join outbox_message m on m.route = ? and m.position = j.position
where m.id = unhex(j.id)
