-- What waits for a route, wherever it stands. Counts stop at so many rows. Route and limit, as often as they are asked for.
with
    looked as (
        select m.stripe, m.appended_at
        from outbox_message m force index (primary)
        where m.route = ?
        order by m.position
        limit ?
    ),
    owned as (
        select l.bucket
        from outbox_relay r
        straight_join outbox_lease l on l.route = r.route and l.relay = r.relay
        where r.route = ?
          and r.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
          and r.expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * r.lasts
          and (l.expires_at is null or l.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)))
    )
select (select count(*) from looked),
       (select min(appended_at) from looked),
       (select min(p.appended_at) from outbox_parked p where p.route = ?),
       (select count(*) from (select 1 from outbox_parked where route = ? limit ?) c),
       (select count(*) from (select 1 from outbox_key where route = ? and held = 0 limit ?) c),
       (select count(*) from (select 1 from outbox_key where route = ? and held = 1 limit ?) c),
       (select count(*) from (select 1 from outbox_dead where route = ? limit ?) c),
       (select count(*) from (select 1 from outbox_scheduled where route = ? limit ?) c),
       (select count(*) from (
            select stripe div 4 as bucket from looked
            union
            select bucket from (select bucket from outbox_key where route = ? limit ?) k
        ) w where w.bucket not in (select o.bucket from owned o)),
       (select min(d.due_at)
        from (select s.route, s.due_at from outbox_scheduled s
              where s.due_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
              order by s.due_at limit ?) d
        where d.route = ?),
       timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
