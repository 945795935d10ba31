-- Parked messages of a key become dead letters, with what is known of the one that failed: reason, now, route, topic, key, how many, from the
-- first.
insert into outbox_dead
    (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, reason, attempts, first_failure, last_failure, died_at)
select p.position, p.stripe, p.number, p.id, p.route, p.topic, p.`key`, p.order_key, p.event_type, p.schema_version, p.content_type, p.headers,
       p.payload, p.occurred_at, p.appended_at, ?,
       case when k.failing = p.id then k.attempts else 0 end,
       case when k.failing = p.id then k.first_failure end,
       case when k.failing = p.id then k.last_failure end,
       ?
from outbox_parked p
straight_join outbox_key k on k.route = p.route and k.topic = p.topic and k.`key` = p.order_key
where p.route = ? and p.topic = ? and p.order_key = ?
order by p.position
limit ?
