-- Appends delivered messages again, the oldest, records it, and returns their number.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 actor, $9 operation, $10 detail,
-- $11 behind how many.
-- $12 type (null: any).
with done as materialized (
    select outbox_replay(array(
        select h.number
        from outbox_history h
        where ($1::text is null or h.route = $1)
          and ($2::text is null or h.topic = $2)
          and ($3::text is null or h.order_key = $3)
          and ($12::text is null or h.event_type = $12)
          and ($4::uuid[] is null or h.id = any($4))
          and ($5::bigint is null or h.delivered_at >= $5)
          and ($6::bigint is null or h.delivered_at < $6)
        order by h.number
        limit $7 offset $11
    )) as ids
)
select cardinality(d.ids)::bigint,
       case when cardinality(d.ids) > 0 then outbox_note($8, $9, $1, $2, $3, $10, cardinality(d.ids), d.ids) end as noted
from done d
