-- Backlog of a route: $1 route. Counts stop at $2 rows. Below the low-water that all buckets of the
-- route have reached no message should stand; $3 is the lowest position at which one was found
-- nevertheless.
with owned as materialized (
    select l.bucket, l.low_water as given, r.low_water as mark,
           r.expires_at > outbox_now() and r.expires_at <= outbox_now() + 2 * r.lasts
               and (l.expires_at is null or l.expires_at > outbox_now()) as live
    from outbox_lease l
    left join outbox_relay r on r.route = l.route and r.relay = l.relay
    where l.route = $1
), start as materialized (
    select least(case when count(*) = 256 then min(coalesce(o.given, o.mark, 0)) else 0 end, $3::bigint - 1) as low_water from owned o
), looked as materialized (
    -- Counted while it is read: the rows themselves would go to a file.
    select m.route = $1 as is_here, m.bucket, count(*) as n
    from (
        select m.route, m.bucket
        from outbox_message m
        where m.position > (select s.low_water from start s)
        order by m.position
        limit $2
    ) m
    group by m.route = $1, m.bucket
)
select (select coalesce(sum(l.n), 0)::bigint from looked l where l.is_here) as pending,
       (select coalesce(sum(l.n), 0)::bigint from looked l) as looked,
       -- Deeper than the counting limit, but not through a backlog of other routes of any size.
       (select o.appended_at
        from (select m.route, m.appended_at, m.position from outbox_message m where m.position > (select s.low_water from start s)
              order by m.position limit 10 * $2) o
        where o.route = $1
        order by o.position limit 1) as oldest_hot,
       (select p.appended_at from outbox_parked p where p.route || '' = $1 order by p.position limit 1) as oldest_parked,
       -- The clock is read once: in a comparison row by row, no index could be used.
       (select min(d.due_at)
        from (select s.route, s.due_at from outbox_scheduled s where s.due_at <= (select outbox_now()) order by s.due_at limit $2) d
        where d.route = $1) as oldest_due,
       (select count(*) from (select from outbox_parked p where p.route = $1 limit $2) c) as parked,
       (select count(*) from (select from outbox_key k where k.route = $1 and not k.held limit $2) c) as retrying_keys,
       (select count(*) from (select from outbox_key k where k.route || '' = $1 and k.held limit $2) c) as held_keys,
       (select count(*) from (select from outbox_dead d where d.route = $1 limit $2) c) as dead,
       (select count(*) from (select from outbox_scheduled s where s.route = $1 limit $2) c) as scheduled,
       -- Mostly every bucket has an owner, and nothing has to be read for it.
       case when (select count(*) from owned o where o.live) = 256 then 0 else (select count(*) from (
            select l.bucket from looked l where l.is_here
            union
            select k.bucket from (select k.bucket from outbox_key k where k.route = $1 limit $2) k
        ) w where w.bucket not in (select o.bucket from owned o where o.live)) end as unowned_buckets,
       outbox_now() as now
