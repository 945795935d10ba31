-- Corrects a dead letter: id, topic, key, what it is ordered by, type, schema version, content type, headers, payload, occurred at; its entry.
update outbox_dead
set id = ?, topic = ?, `key` = ?, order_key = ?, event_type = ?, schema_version = ?, content_type = ?, headers = ?, payload = ?, occurred_at = ?
where entry = ?
