-- The oldest dead letter that matches, with its number.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many: 1, or 0.
-- $8 type (null: any).
with at_primary as (select outbox_now())
select d.position, d.id, d.bucket::bigint as bucket, d.topic, d.key, d.event_type, d.schema_version, d.content_type, d.headers, d.payload,
       d.occurred_at, d.appended_at, d.number
from outbox_dead d
where ($1::text is null or d.route = $1)
  and ($2::text is null or d.topic = $2)
  and ($3::text is null or d.order_key = $3)
  and ($8::text is null or d.event_type = $8)
  and ($4::uuid[] is null or d.id = any($4))
  and ($5::bigint is null or d.died_at >= $5)
  and ($6::bigint is null or d.died_at < $6)
order by d.number
limit $7
