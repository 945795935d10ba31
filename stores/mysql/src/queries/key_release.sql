-- An operator lets a key try again now, from no attempts: version, now, route, topic, key.
update outbox_key
set version = ?, held = 0, next_attempt_at = ?, failing = null, attempts = 0, first_failure = null
where route = ? and topic = ? and `key` = ?
