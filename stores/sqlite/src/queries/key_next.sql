-- A key continues with its next message, with zero attempts: at once, unless it is held. ?1 route,
-- ?2 topic, ?3 key, ?4 version, ?5 now.
update outbox_key
set version = ?4, next_attempt_at = case when held = 0 then ?5 end, failing = null, attempts = 0, first_failure = null, last_failure = null
where route = ?1 and topic = ?2 and key = ?3
