-- A parked message becomes a dead letter: reason, attempts, first and last failure, now, route, topic, key, position, id.
insert into outbox_dead
    (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, reason, attempts, first_failure, last_failure, died_at)
select position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
       appended_at, ?, ?, ?, ?, ?
from outbox_parked
where route = ? and topic = ? and order_key = ? and position = ? and id = ?
