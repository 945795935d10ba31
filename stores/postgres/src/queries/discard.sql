-- Makes parked messages of a key dead letters, and records it: $1 route, $2 topic, $3 key, $4 actor, $5 operation, $6 detail, $7 how many.
with done as materialized (
    select outbox_discard($1::text, $2::text, $3::text, $7::bigint) as ids
)
select cardinality(d.ids)::bigint,
       case when d.ids is not null then outbox_note($4, $5, $1, $2, $3, $6, cardinality(d.ids), d.ids) end as noted
from done d
