-- A key goes on with its next message, from no attempts: at once, unless it is held. Version, now, route, topic, key.
update outbox_key
set version = ?, next_attempt_at = case when held = 0 then ? end, failing = null, attempts = 0, first_failure = null, last_failure = null
where route = ? and topic = ? and `key` = ?
