-- Delivered messages, the oldest first.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over.
select h.position, h.id, h.bucket::bigint, h.topic, h.key, h.event_type, h.schema_version, h.content_type, h.headers, h.payload, h.occurred_at,
       h.appended_at, h.route, h.delivered_at
from outbox_history h
where ($1::text is null or h.route = $1)
  and ($2::text is null or h.topic = $2)
  and ($3::text is null or h.order_key = $3)
  and ($4::uuid[] is null or h.id = any($4))
  and ($5::bigint is null or h.delivered_at >= $5)
  and ($6::bigint is null or h.delivered_at < $6)
order by h.number
limit $7 offset $8
