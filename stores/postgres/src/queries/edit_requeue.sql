-- Appends the corrected message in place of a dead letter, records it, and returns whether that existed.
-- $1 its number, $2 id, $3 topic, $4 key, $5 type, $6 schema version, $7 content type, $8 headers, $9 payload, $10 occurred at; of the record: $11
-- actor, $12 operation, $13 route, $14 topic, $15 key, $16 detail.
with done as materialized (
    select outbox_requeue_edited($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as was
)
select d.was, case when d.was then outbox_note($11, $12, $13, $14, $15, $16, 1, array[$2::uuid]) end as noted from done d
