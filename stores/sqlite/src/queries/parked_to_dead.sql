-- Parked messages of a key become dead letters, with the details of the one that failed: ?1 route,
-- ?2 topic, ?3 key, ?4 reason, ?5 now, ?6 limit, from the first.
insert into outbox_dead
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, reason, attempts, first_failure, last_failure, died_at)
select p.position, p.id, p.route, p.bucket, p.topic, p.key, p.order_key, p.event_type, p.schema_version, p.content_type, p.headers,
       p.payload, p.occurred_at, p.appended_at, ?4,
       case when k.failing = p.id then k.attempts else 0 end,
       case when k.failing = p.id then k.first_failure end,
       case when k.failing = p.id then k.last_failure end,
       ?5
from outbox_parked p
join outbox_key k on k.route = p.route and k.topic = p.topic and k.key = p.order_key
where p.route = ?1 and p.topic = ?2 and p.order_key = ?3
order by p.position
limit ?6
