-- Routes, their live relays and their pauses. Looks at $1 messages at either end of the hot table and as many scheduled ones: no index that every
-- row is in begins with the route. Where one does, it goes from route to route, at most $2.
with recursive parked (route, turn) as (
    (select p.route || '', 1::bigint from outbox_parked p order by p.route || '', p.position limit 1)
    union all
    select (select p.route || '' from outbox_parked p where p.route || '' > i.route order by p.route || '', p.position limit 1), i.turn + 1
    from parked i
    where i.route is not null and i.turn < $2::bigint
), dead (route, turn) as (
    (select d.route, 1::bigint from outbox_dead d order by d.route, d.topic limit 1)
    union all
    select (select d.route from outbox_dead d where d.route > i.route order by d.route, d.topic limit 1), i.turn + 1
    from dead i
    where i.route is not null and i.turn < $2
), failing (route, turn) as (
    (select k.route, 1::bigint from outbox_key k order by k.route, k.topic, k.key limit 1)
    union all
    select (select k.route from outbox_key k where k.route > i.route order by k.route, k.topic, k.key limit 1), i.turn + 1
    from failing i
    where i.route is not null and i.turn < $2
)
select 'route' as kind, f.route, null as topic
from (
    select l.route from outbox_lease l where l.bucket = 0
    union
    select p.route from parked p
    union
    select d.route from dead d
    union
    select k.route from failing k
    union
    select m.route from (select m.route from outbox_message m order by m.position limit $1::bigint) m
    union
    select m.route from (select m.route from outbox_message m order by m.position desc limit $1) m
    union
    select s.route from (select s.route from outbox_scheduled s order by s.due_at limit $1) s
) f
where f.route is not null
union all
select 'relay', r.route, null
from outbox_relay r
where r.expires_at > outbox_now() and r.expires_at <= outbox_now() + 2 * r.lasts
union all
select 'pause', p.route, p.topic from outbox_pause p
