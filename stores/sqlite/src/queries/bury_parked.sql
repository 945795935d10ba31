-- A parked message becomes a dead letter: ?1 route, ?2 position, ?3 id, ?4 reason, ?5 attempts, ?6 first and ?7 last failure, ?8 now.
insert into outbox_dead
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, reason, attempts, first_failure, last_failure, died_at)
select position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
       appended_at, ?4, ?5, ?6, ?7, ?8
from outbox_parked
where position = ?2 and id = ?3 and route = ?1
