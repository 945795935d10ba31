-- Delivered messages, the oldest first, as many as fit.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over, $9 how
-- many bytes of content; the first one comes whatever it has. Sizes are known without reading content.
-- $10 type (null: any).
with at_primary as (select outbox_now()), page as materialized (
    select h.number, h.delivered_at, (octet_length(h.headers) + octet_length(h.payload))::bigint as size
    from outbox_history h
    where ($1::text is null or h.route = $1)
      and ($2::text is null or h.topic = $2)
      and ($3::text is null or h.order_key = $3)
      and ($10::text is null or h.event_type = $10)
      and ($4::uuid[] is null or h.id = any($4))
      and ($5::bigint is null or h.delivered_at >= $5)
      and ($6::bigint is null or h.delivered_at < $6)
    order by h.number asc
    limit $7 offset $8
), measured as (
    select p.number, p.delivered_at, row_number() over w as place, sum(p.size) over w as total
    from page p
    window w as (order by p.number asc rows unbounded preceding)
)
select h.position, h.id, h.bucket::bigint as bucket, h.topic, h.key, h.event_type, h.schema_version, h.content_type, h.headers, h.payload,
       h.occurred_at, h.appended_at, h.route, h.delivered_at
from measured m
cross join lateral (select * from outbox_history h where h.number = m.number and h.delivered_at = m.delivered_at offset 0) h
where m.place = 1 or m.total <= $9::bigint
order by m.place
