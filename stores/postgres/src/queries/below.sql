-- The lowest position of a message of a route that stands at or below the low-water of all its
-- buckets, where none should, and that low-water: $1 route. Maximum number of scanned rows of other
-- routes: $2.
with at_primary as (select outbox_now()), start as materialized (
    select case when count(*) = 256 then min(coalesce(l.low_water, r.low_water, 0)) else 0 end as low_water
    from outbox_lease l
    left join outbox_relay r on r.route = l.route and r.relay = l.relay
    where l.route = $1
)
select (select w.position
        from (select m.position, m.route from outbox_message m where m.position <= (select s.low_water from start s) order by m.position limit $2) w
        where w.route = $1
        order by w.position
        limit 1) as position,
       (select s.low_water from start s) as low_water
