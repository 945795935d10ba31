-- Parked messages of a key up to a position: route, topic, key, position.
select position, id, stripe, number, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at
from outbox_parked
where route = ? and topic = ? and order_key = ? and position <= ?
order by position
