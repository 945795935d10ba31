-- A failing key: ?1 route, ?2 topic, ?3 key.
select version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since
from outbox_key
where route = ?1 and topic = ?2 and key = ?3
