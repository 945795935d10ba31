-- Appends the corrected message in place of a dead letter, and returns whether that existed.
-- $1 its number, $2 id, $3 topic, $4 key, $5 type, $6 schema version, $7 content type, $8 headers, $9 payload, $10 occurred at.
select outbox_requeue_edited($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
