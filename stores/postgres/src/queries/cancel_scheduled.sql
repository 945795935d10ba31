-- Removes scheduled messages: $1 ids.
with durably as materialized (
    select outbox_durably() is null as is
)
delete from outbox_scheduled s using durably where s.id = any($1::uuid[]) and durably.is is not null
