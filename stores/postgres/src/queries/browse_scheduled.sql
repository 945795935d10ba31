-- Scheduled messages, the next due first, as many as fit.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over, $9 how
-- many bytes of content; the first one comes whatever it has. Sizes are known without reading content.
-- $10 type (null: any).
with at_primary as (select outbox_now()), page as materialized (
    select s.due_at, s.number, (octet_length(s.headers) + octet_length(s.payload))::bigint as size
    from outbox_scheduled s
    where ($1::text is null or s.route = $1)
      and ($2::text is null or s.topic = $2)
      and ($3::text is null or s.key = $3)
      and ($10::text is null or s.event_type = $10)
      and ($4::uuid[] is null or s.id = any($4))
      and ($5::bigint is null or s.due_at >= $5)
      and ($6::bigint is null or s.due_at < $6)
    order by s.due_at asc, s.number asc
    limit $7 offset $8
), measured as (
    select p.due_at, p.number, row_number() over w as place, sum(p.size) over w as total
    from page p
    window w as (order by p.due_at asc, p.number asc rows unbounded preceding)
)
select 0::bigint as position, s.id, 0::bigint as bucket, s.topic, s.key, s.event_type, s.schema_version, s.content_type, s.headers, s.payload,
       s.occurred_at, s.appended_at, s.route, s.due_at
from measured m
cross join lateral (select * from outbox_scheduled s where s.number = m.number offset 0) s
where m.place = 1 or m.total <= $9::bigint
order by m.place
