-- An operator lets a key try again now, with zero attempts: ?1 route, ?2 topic, ?3 key, ?4 version,
-- ?5 now.
update outbox_key
set version = ?4, held = 0, next_attempt_at = ?5, failing = null, attempts = 0, first_failure = null
where route = ?1 and topic = ?2 and key = ?3
