-- Parked messages, key by key, in the order in which they will go out.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over.
select p.position, p.id, p.bucket::bigint, p.topic, p.key, p.event_type, p.schema_version, p.content_type, p.headers, p.payload, p.occurred_at,
       p.appended_at
from outbox_parked p
where ($1::text is null or p.route = $1)
  and ($2::text is null or p.topic = $2)
  and ($3::text is null or p.order_key = $3)
  and ($4::uuid[] is null or p.id = any($4))
  and ($5::bigint is null or p.parked_at >= $5)
  and ($6::bigint is null or p.parked_at < $6)
order by p.route, p.topic, p.order_key, p.position
limit $7 offset $8
