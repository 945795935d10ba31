-- A key fails: route, topic, key, bucket, version, held, next attempt (null where held), the message, attempts, first and last failure, now. A
-- key that is held stays held.
insert into outbox_key
    (route, topic, `key`, bucket, version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since)
values
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on duplicate key update
    version = values(version),
    next_attempt_at = case when held = 0 then values(next_attempt_at) end,
    held = greatest(held, values(held)),
    failing = values(failing),
    attempts = values(attempts),
    first_failure = values(first_failure),
    last_failure = values(last_failure)
