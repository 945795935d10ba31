-- Recorded operations, the oldest first.
-- $1 route, $2 topic, $3 key (null: any), $4 ids of which an entry names one (null: any), $5 since, $6 before (null: any), $7 how many, $8 how
-- many to pass over.
with at_primary as (select outbox_now())
select a.at, a.actor, a.operation, a.route, a.topic, a.key, a.detail, a.affected, a.ids
from outbox_audit a
where ($1::text is null or a.route = $1)
  and ($2::text is null or a.topic = $2)
  and ($3::text is null or a.key = $3)
  and ($4::uuid[] is null or exists (select from unnest($4::uuid[]) i(id) where position(i.id::text in a.ids) > 0))
  and ($5::bigint is null or a.at >= $5)
  and ($6::bigint is null or a.at < $6)
order by a.number asc
limit $7 offset $8
