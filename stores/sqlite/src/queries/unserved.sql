-- Routes with messages that no live relay serves: the name, since when the oldest scanned one
-- waits, and now. Scans the first ?1 rows of the hot table and of the due messages: no index that
-- every row is in begins with the route. Where one does, it goes from route to route: at most ?2,
-- and at most as many rows of a route.
with recursive
    served (route) as materialized (
        select distinct route
        from outbox_relay
        where expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
          and expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * lasts
    ),
    looked as materialized (
        select route, appended_at from outbox_message order by position limit ?1
    ),
    overdue as materialized (
        select route, due_at
        from outbox_scheduled
        where due_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
        order by due_at
        limit ?1
    ),
    inbox (route, turn) as (
        select min(m.route), 1 from outbox_message m where m.route >= 'inbox/' and m.route < 'inbox0'
        union all
        select (select min(m.route) from outbox_message m where m.route > i.route and m.route >= 'inbox/' and m.route < 'inbox0'), i.turn + 1
        from inbox i
        where i.route is not null and i.turn < ?2
    ),
    parked (route, turn) as (
        select min(p.route), 1 from outbox_parked p
        union all
        select (select min(p.route) from outbox_parked p where p.route > i.route), i.turn + 1
        from parked i
        where i.route is not null and i.turn < ?2
    )
select l.route, min(l.appended_at) as since, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now
from looked l
where l.route not in (select s.route from served s)
group by l.route
union all
select o.route, min(o.due_at), cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from overdue o
where o.route not in (select s.route from served s)
group by o.route
union all
select i.route,
       (select min(w.appended_at)
        from (select m.appended_at from outbox_message m
              where m.route = i.route and m.route >= 'inbox/' and m.route < 'inbox0' limit ?2) w),
       cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from inbox i
where i.route is not null and i.route not in (select s.route from served s)
union all
select i.route,
       (select p.appended_at from outbox_parked p where p.route = i.route order by p.position limit 1),
       cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from parked i
where i.route is not null and i.route not in (select s.route from served s)
