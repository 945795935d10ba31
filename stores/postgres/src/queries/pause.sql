-- Pauses a topic of a route, or with an empty topic the route, and records it: $1 route, $2 topic, $3 actor, $4 operation, $5 detail.
with durably as materialized (
    select outbox_durably() is null as is
), made as (
    insert into outbox_pause (route, topic)
    select $1::text, $2::text from durably where durably.is is not null
    on conflict do nothing
    returning 1
), counted as materialized (
    select count(*) as n from made
)
select c.n, case when c.n > 0 then outbox_note($3, $4, $1, nullif($2, ''), null, $5, 0, '{}') end as noted from counted c
