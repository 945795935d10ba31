-- Resumes a topic or a route, and records it: $1 route, $2 topic, $3 actor, $4 operation, $5 detail.
with durably as materialized (
    select outbox_durably() is null as is
), gone as (
    delete from outbox_pause p using durably where p.route = $1::text and p.topic = $2::text and durably.is is not null
    returning 1
), counted as materialized (
    select count(*) as n from gone
)
select c.n, case when c.n > 0 then outbox_note($3, $4, $1, nullif($2, ''), null, $5, 0, '{}') end as noted from counted c
