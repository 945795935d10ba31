-- The next state of a failing key: route, topic, key, bucket, version, held, next attempt, the failing message, attempts, first and last failure, since
-- when.
insert into outbox_key
    (route, topic, `key`, bucket, version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since)
values
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on duplicate key update
    version = values(version),
    held = values(held),
    next_attempt_at = values(next_attempt_at),
    failing = values(failing),
    attempts = values(attempts),
    first_failure = values(first_failure),
    last_failure = values(last_failure)
