-- Messages to publish, the oldest position first, as many as fit.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over, $9 how
-- many bytes of content; the first one comes whatever it has; $11 how many are looked at. Sizes are known without reading content. The primary key
-- gives the order, so nothing is read behind the last message of the page.
-- $10 type (null: any).
with at_primary as (select outbox_now()), page as materialized (
    select l.position, l.size
    from (
        select m.position, m.id, m.route, m.topic, m.key, m.event_type, m.appended_at, (octet_length(m.headers) + octet_length(m.payload))::bigint as size
        from outbox_message m
        order by m.position asc
        limit $11
    ) l
    where ($1::text is null or l.route = $1)
      and ($2::text is null or l.topic = $2)
      and ($3::text is null or coalesce(l.key, l.id::text) = $3)
      and ($10::text is null or l.event_type = $10)
      and ($4::uuid[] is null or l.id = any($4))
      and ($5::bigint is null or l.appended_at >= $5)
      and ($6::bigint is null or l.appended_at < $6)
    order by l.position asc
    limit $7 offset $8
), measured as (
    select p.position, row_number() over w as place, sum(p.size) over w as total
    from page p
    window w as (order by p.position asc rows unbounded preceding)
)
select m.position, m.id, m.bucket::bigint as bucket, m.topic, m.key, m.event_type, m.schema_version, m.content_type, m.headers, m.payload,
       m.occurred_at, m.appended_at, m.route
from measured x
cross join lateral (select * from outbox_message m where m.position = x.position offset 0) m
where x.place = 1 or x.total <= $9::bigint
order by x.place
