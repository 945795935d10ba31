-- Copies messages of a key to the parked ones: ?1 route, ?2 topic, ?3 key, ?4 positions (JSON), ?5 their ids, 16 bytes each, ?6 now. One that
-- is there, as after a restore of the hot table alone, stays as it is.
insert into outbox_parked
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, parked_at)
select m.position, m.id, m.route, m.bucket, m.topic, m.key, m.order_key, m.event_type, m.schema_version, m.content_type, m.headers,
       m.payload, m.occurred_at, m.appended_at, ?6
from json_each(?4) j
cross join outbox_pending m on m.position = j.value
where m.id = substr(?5, j.key * 16 + 1, 16) and m.route = ?1 and m.topic = ?2 and m.order_key = ?3
on conflict do nothing
