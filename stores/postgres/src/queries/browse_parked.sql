-- Parked messages, key by key, in the order in which they will go out, as many as fit.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over, $9 how
-- many bytes of content; the first one comes whatever it has. Sizes are known without reading content.
-- $10 type (null: any).
with at_primary as (select outbox_now()), page as materialized (
    select q.route, q.topic, q.order_key, q.position, q.id, (octet_length(q.headers) + octet_length(q.payload))::bigint as size
    from outbox_parked q
    where ($1::text is null or q.route = $1)
      and ($2::text is null or q.topic = $2)
      and ($3::text is null or q.order_key = $3)
      and ($10::text is null or q.event_type = $10)
      and ($4::uuid[] is null or q.id = any($4))
      and ($5::bigint is null or q.parked_at >= $5)
      and ($6::bigint is null or q.parked_at < $6)
    order by q.route asc, q.topic asc, q.order_key asc, q.position asc
    limit $7 offset $8
), measured as (
    select p.route, p.topic, p.order_key, p.position, p.id, row_number() over w as place, sum(p.size) over w as total
    from page p
    window w as (order by p.route asc, p.topic asc, p.order_key asc, p.position asc rows unbounded preceding)
)
select q.position, q.id, q.bucket::bigint as bucket, q.topic, q.key, q.event_type, q.schema_version, q.content_type, q.headers, q.payload,
       q.occurred_at, q.appended_at, q.route, q.parked_at
from measured m
cross join lateral (select * from outbox_parked q where q.position = m.position and q.id = m.id offset 0) q
where m.place = 1 or m.total <= $9::bigint
order by m.place
