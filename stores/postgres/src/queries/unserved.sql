-- Routes with messages that no live relay serves: the name, since when the oldest scanned one
-- waits, now, and in a separate row the start of the next search. Scans the first $1 rows of the
-- hot table behind position $2, because no index that every row is in begins with the route; as
-- many due messages; and goes from route to route, at most $3, through the parked ones.
with recursive served as materialized (
    select distinct r.route
    from outbox_relay r
    where r.expires_at > outbox_now() and r.expires_at <= outbox_now() + 2 * r.lasts
), looked as materialized (
    -- The first of each route: the rows themselves would go to a file.
    select m.route, min(m.position) as position, min(m.appended_at) as appended_at,
           m.route not in (select s.route from served s) as unserved
    from (select m.route, m.position, m.appended_at from outbox_message m where m.position > $2 order by m.position limit $1) m
    group by m.route
), overdue as materialized (
    select s.route, s.due_at from outbox_scheduled s where s.due_at <= (select outbox_now()) order by s.due_at limit $1
), parked (route, turn) as (
    (select p.route || '', 1::bigint from outbox_parked p order by p.route || '', p.position limit 1)
    union all
    select (select p.route || '' from outbox_parked p where p.route || '' > i.route order by p.route || '', p.position limit 1), i.turn + 1
    from parked i
    where i.route is not null and i.turn < $3
), marks as materialized (
    -- Bound below which no row of a route stands, nor any uncommitted one, of whatever route.
    select case when count(l.bucket) = 256 then min(coalesce(l.low_water, r.low_water, 0)) else 0 end as low_water
    from served s
    left join outbox_lease l on l.route = s.route
    left join outbox_relay r on r.route = l.route and r.relay = l.relay
    group by s.route
)
select l.route, l.appended_at as since, outbox_now() as now, null::bigint as next
from looked l
where l.unserved
union all
select o.route, min(o.due_at), outbox_now(), null
from overdue o
where o.route not in (select s.route from served s)
group by o.route
union all
select i.route, (select p.appended_at from outbox_parked p where p.route || '' = i.route order by p.position limit 1), outbox_now(), null
from parked i
where i.route is not null and i.route not in (select s.route from served s)
union all
-- Unserved messages are scanned the next time too. All other existing rows, and those committed
-- until then, stand behind the present marks.
select null, null, outbox_now(),
       least(coalesce((select min(w.low_water) from marks w), 0), (select min(l.position) - 1 from looked l where l.unserved))
