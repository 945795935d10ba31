-- Backlog of a route: ?1 route. Counts stop at ?2 rows. Below the low-water that all buckets of the
-- route have reached, no message should stand: counting begins there, or at a message below it, if
-- that is among the first ?2 rows of all routes.
with
    mark as materialized (
        select case when count(*) = 256 then min(low_water) else 0 end as low_water from outbox_lease where route = ?1
    ),
    start as materialized (
        select coalesce((select position - 1
                         from (select route, position from outbox_message where position <= (select low_water from mark)
                               order by position limit ?2)
                         where route = ?1
                         order by position limit 1),
                        (select low_water from mark)) as low_water
    ),
    looked as materialized (
        select route, bucket
        from outbox_message
        where position > (select low_water from start)
        order by position
        limit ?2
    ),
    owned as materialized (
        select l.bucket
        from outbox_lease l
        join outbox_relay r on r.route = l.route and r.relay = l.relay
        where l.route = ?1
          and r.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
          and r.expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * r.lasts
          and (l.expires_at is null or l.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
    )
select (select count(*) from looked where route = ?1) as pending,
       (select count(*) from looked) as looked,
       -- Deeper than the counting limit, but not through a backlog of other routes of any size.
       (select appended_at
        from (select route, appended_at, position from outbox_message where position > (select low_water from start)
              order by position limit 10 * ?2)
        where route = ?1
        order by position limit 1) as oldest_hot,
       (select appended_at from outbox_parked where route = ?1 order by position limit 1) as oldest_parked,
       (select min(due_at)
        from (select route, due_at from outbox_scheduled
              where due_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
              order by due_at limit ?2)
        where route = ?1) as oldest_due,
       (select count(*) from (select 1 from outbox_parked where route = ?1 limit ?2)) as parked,
       (select count(*) from (select 1 from outbox_key where route = ?1 and held = 0 limit ?2)) as retrying_keys,
       (select count(*) from (select 1 from outbox_key where route = ?1 and held = 1 limit ?2)) as held_keys,
       (select count(*) from (select 1 from outbox_dead where route = ?1 limit ?2)) as dead,
       (select count(*) from (select 1 from outbox_scheduled where route = ?1 limit ?2)) as scheduled,
       (select count(*) from (
            select bucket from looked where route = ?1 and bucket is not null
            union
            select bucket from (select bucket from outbox_key where route = ?1 limit ?2)
        ) where bucket not in (select bucket from owned)) as unowned_buckets,
       cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now
