-- Lets a key try again now, and records it: $1 route, $2 topic, $3 key, $4 actor, $5 operation, $6 detail.
with done as materialized (
    select outbox_release($1::text, $2::text, $3::text) as released
)
select d.released, case when d.released then outbox_note($4, $5, $1, $2, $3, $6, 0, '{}') end as noted from done d
