-- Gives the outbox another identity, and records it: $1 the identity, $2 actor, $3 operation, $4 detail.
with durably as materialized (
    select outbox_durably() is null as is
), made as (
    insert into outbox_identity (id)
    select $1::uuid from durably where durably.is is not null
    on conflict (one) do update set id = excluded.id
    returning 1
), counted as materialized (
    select count(*) as n from made
)
select c.n, case when c.n > 0 then outbox_note($2, $3, null, null, null, $4, 0, '{}') end as noted from counted c
