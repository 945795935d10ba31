-- Makes the first parked message of a key a dead letter, and records it: $1 route, $2 topic, $3 key, $4 actor, $5 operation, $6 detail.
with done as materialized (
    select outbox_skip($1::text, $2::text, $3::text) as ids
)
select d.ids, case when cardinality(d.ids) > 0 then outbox_note($4, $5, $1, $2, $3, $6, cardinality(d.ids), d.ids) end as noted from done d
