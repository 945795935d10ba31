-- Routes, their live relays and their pauses. Looks at ?1 messages at either end of the hot table and as many scheduled ones: no index that every
-- row is in begins with the route. Where one does, it goes from route to route, at most ?2.
with recursive
    parked (route, turn) as (
        select min(p.route), 1 from outbox_parked p
        union all
        select (select min(p.route) from outbox_parked p where p.route > i.route), i.turn + 1
        from parked i
        where i.route is not null and i.turn < ?2
    ),
    dead (route, turn) as (
        select min(d.route), 1 from outbox_dead d
        union all
        select (select min(d.route) from outbox_dead d where d.route > i.route), i.turn + 1
        from dead i
        where i.route is not null and i.turn < ?2
    ),
    failing (route, turn) as (
        select min(k.route), 1 from outbox_key k
        union all
        select (select min(k.route) from outbox_key k where k.route > i.route), i.turn + 1
        from failing i
        where i.route is not null and i.turn < ?2
    ),
    leased (route, turn) as (
        select min(l.route), 1 from outbox_lease l
        union all
        select (select min(l.route) from outbox_lease l where l.route > i.route), i.turn + 1
        from leased i
        where i.route is not null and i.turn < ?2
    )
select 'route' as kind, route, null as topic from (
    select route from leased
    union
    select route from parked
    union
    select route from dead
    union
    select route from failing
    union
    select route from (select route from outbox_message order by position limit ?1)
    union
    select route from (select route from outbox_message order by position desc limit ?1)
    union
    select route from (select route from outbox_scheduled order by due_at limit ?1)
)
where route is not null
union all
select 'relay', route, null
from outbox_relay
where expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
  and expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * lasts
union all
select 'pause', route, topic from outbox_pause
