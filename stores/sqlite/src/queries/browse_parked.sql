-- Parked messages, key by key, in the order in which they will go out, as many as fit.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 ids as hexadecimal (JSON; null: any), ?5 since, ?6 before (null: any), ?7 how many,
-- ?8 how many to pass over, ?9 how many bytes of content; the first one comes whatever it has. Sizes are known without reading
-- content; nothing is sorted that has any: the join goes along the page.
-- ?10 type (null: any).
with page as materialized (
    select rowid as number, route, topic, order_key, position, octet_length(headers) + octet_length(payload) as size
    from outbox_parked
    where (?1 is null or route = ?1)
      and (?2 is null or topic = ?2)
      and (?3 is null or order_key = ?3)
      and (?10 is null or event_type = ?10)
      and (?4 is null or hex(id) in (select value from json_each(?4)))
      and (?5 is null or parked_at >= ?5)
      and (?6 is null or parked_at < ?6)
    order by route asc, topic asc, order_key asc, position asc
    limit ?7 offset ?8
), measured as materialized (
    select number, route, topic, order_key, position, row_number() over w as place, sum(size) over w as total
    from page
    window w as (order by route asc, topic asc, order_key asc, position asc rows unbounded preceding)
)
select t.position, t.id, t.route, t.bucket, t.topic, t.key, t.event_type, t.schema_version, t.content_type, t.headers, t.payload, t.occurred_at,
       t.appended_at, t.parked_at
from measured m
cross join outbox_parked t on t.rowid = m.number
where m.place = 1 or m.total <= ?9
