-- Removes scheduled messages, and records it: $1 ids, $2 actor, $3 operation, $4 detail.
with durably as materialized (
    select outbox_durably() is null as is
), gone as (
    delete from outbox_scheduled s using durably where s.id = any($1::uuid[]) and durably.is is not null
    returning s.id
), counted as materialized (
    select count(*) as n, array_agg(g.id) as ids from gone g
)
select c.n, case when c.n > 0 then outbox_note($2, $3, null, null, null, $4, c.n, c.ids) end as noted from counted c
