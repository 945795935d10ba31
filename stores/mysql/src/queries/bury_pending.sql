-- A message of the hot table becomes a dead letter: reason, attempts, first and last failure, now, route, position, id.
insert into outbox_dead
    (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, reason, attempts, first_failure, last_failure, died_at)
select position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
       appended_at, ?, ?, ?, ?, ?
from outbox_message
where route = ? and position = ? and id = ?
