-- A failing key, locked until the transaction ends: route, topic, key.
select version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since
from outbox_key
where route = ? and topic = ? and `key` = ?
for update
