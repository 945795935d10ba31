-- Keeps delivered rows, before settle removes them. Parameters as there.
insert into outbox_history
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, delivered_at)
select m.position, m.id, m.route, m.bucket, m.topic, m.key, m.order_key, m.event_type, m.schema_version, m.content_type, m.headers,
       m.payload, m.occurred_at, m.appended_at, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from json_each(?1) j
cross join outbox_pending m on m.position = j.value
where m.id = substr(?2, j.key * 16 + 1, 16)
