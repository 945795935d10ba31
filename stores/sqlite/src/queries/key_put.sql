-- The next state of a failing key: ?1 route, ?2 topic, ?3 key, ?4 bucket, ?5 version, ?6 held, ?7 next attempt, ?8 the failing message,
-- ?9 attempts, ?10 first and ?11 last failure, ?12 since when.
insert into outbox_key
    (route, topic, key, bucket, version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since)
values
    (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (route, topic, key) do update set
    version = excluded.version,
    held = excluded.held,
    next_attempt_at = excluded.next_attempt_at,
    failing = excluded.failing,
    attempts = excluded.attempts,
    first_failure = excluded.first_failure,
    last_failure = excluded.last_failure
