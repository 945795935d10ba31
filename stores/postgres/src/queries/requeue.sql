-- Appends dead letters again, the oldest, and records it; returns their number, and the ids of the
-- refused ones with the reasons.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 actor, $9 operation, $10 detail.
-- $11 type (null: any).
with done as materialized (
    select q.appended, q.refused, q.reasons, q.ids
    from outbox_requeue(array(
        select d.number
        from outbox_dead d
        where ($1::text is null or d.route = $1)
          and ($2::text is null or d.topic = $2)
          and ($3::text is null or d.order_key = $3)
          and ($11::text is null or d.event_type = $11)
          and ($4::uuid[] is null or d.id = any($4))
          and ($5::bigint is null or d.died_at >= $5)
          and ($6::bigint is null or d.died_at < $6)
        order by d.number
        limit $7
    )) q
)
select d.appended, d.refused, d.reasons,
       case when d.appended > 0 then outbox_note($8, $9, $1, $2, $3, $10, d.appended, d.ids) end as noted
from done d
