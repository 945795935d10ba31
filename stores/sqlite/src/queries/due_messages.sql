-- Parked messages of a key up to a position: ?1 route, ?2 topic, ?3 key, ?4 position.
select position, id, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at
from outbox_parked
where route = ?1 and topic = ?2 and order_key = ?3 and position <= ?4
order by position
