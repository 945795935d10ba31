-- Keeps parked messages that were delivered: ?1 route, ?2 topic, ?3 key, ?4 positions (JSON), ?5 their ids, 16 bytes each, ?6 now.
insert into outbox_history
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, delivered_at)
select p.position, p.id, p.route, p.bucket, p.topic, p.key, p.order_key, p.event_type, p.schema_version, p.content_type, p.headers,
       p.payload, p.occurred_at, p.appended_at, ?6
from json_each(?4) j
cross join outbox_parked p on p.position = j.value
where p.id = substr(?5, j.key * 16 + 1, 16) and p.route = ?1 and p.topic = ?2 and p.order_key = ?3
