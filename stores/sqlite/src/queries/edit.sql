-- Corrects a dead letter: ?1 its number, ?2 id, ?3 topic, ?4 key, ?5 what it is ordered by, ?6 type, ?7 schema version, ?8 content type, ?9 headers,
-- ?10 payload, ?11 occurred at.
update outbox_dead
set id = ?2, topic = ?3, key = ?4, order_key = ?5, event_type = ?6, schema_version = ?7, content_type = ?8, headers = ?9, payload = ?10,
    occurred_at = ?11
where number = ?1
