-- Dead letters, the oldest first, as many as fit.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over, $9 how
-- many bytes of content; the first one comes whatever it has. Sizes are known without reading content.
-- $10 type (null: any).
with at_primary as (select outbox_now()), page as materialized (
    select d.number, (octet_length(d.headers) + octet_length(d.payload))::bigint as size
    from outbox_dead d
    where ($1::text is null or d.route = $1)
      and ($2::text is null or d.topic = $2)
      and ($3::text is null or d.order_key = $3)
      and ($10::text is null or d.event_type = $10)
      and ($4::uuid[] is null or d.id = any($4))
      and ($5::bigint is null or d.died_at >= $5)
      and ($6::bigint is null or d.died_at < $6)
    order by d.number asc
    limit $7 offset $8
), measured as (
    select p.number, row_number() over w as place, sum(p.size) over w as total
    from page p
    window w as (order by p.number asc rows unbounded preceding)
)
select d.position, d.id, d.bucket::bigint as bucket, d.topic, d.key, d.event_type, d.schema_version, d.content_type, d.headers, d.payload,
       d.occurred_at, d.appended_at, d.route, d.reason, d.attempts, d.first_failure, d.last_failure, d.died_at
from measured m
cross join lateral (select * from outbox_dead d where d.number = m.number offset 0) d
where m.place = 1 or m.total <= $9::bigint
order by m.place
