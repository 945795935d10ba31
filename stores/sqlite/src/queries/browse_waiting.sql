-- Messages to publish, the oldest position first, as many as fit.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 ids as hexadecimal (JSON; null: any), ?5 since, ?6 before (null: any), ?7 how many,
-- ?8 how many to pass over, ?9 how many bytes of content; the first one comes whatever it has; ?11 how many are looked at. Sizes are
-- known without reading content; nothing is sorted that has any: the join goes along the page.
-- ?10 type (null: any).
with page as materialized (
    select position, size
    from (
        select position, route, topic, order_key, event_type, id, appended_at, octet_length(headers) + octet_length(payload) as size
        from outbox_pending
        order by position asc
        limit ?11
    )
    where (?1 is null or route = ?1)
      and (?2 is null or topic = ?2)
      and (?3 is null or order_key = ?3)
      and (?10 is null or event_type = ?10)
      and (?4 is null or hex(id) in (select value from json_each(?4)))
      and (?5 is null or appended_at >= ?5)
      and (?6 is null or appended_at < ?6)
    order by position asc
    limit ?7 offset ?8
), measured as materialized (
    select position, row_number() over w as place, sum(size) over w as total
    from page
    window w as (order by position asc rows unbounded preceding)
)
select t.position, t.id, t.route, t.bucket, t.topic, t.key, t.event_type, t.schema_version, t.content_type, t.headers, t.payload, t.occurred_at,
       t.appended_at
from measured m
cross join outbox_message t on t.position = m.position
where m.place = 1 or m.total <= ?9
