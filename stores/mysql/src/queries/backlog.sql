-- What waits for a route, wherever it stands. Counts stop at so many rows. Route and limit, as often as they are asked for.
-- The hot rows are read once, with their payloads, and only here: MariaDB evaluates a common table expression as often as it is named.
with
    owned as (
        select l.bucket
        from outbox_relay r
        straight_join outbox_lease l on l.route = r.route and l.relay = r.relay
        where r.route = ?
          and r.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
          and r.expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * r.lasts
          and (l.expires_at is null or l.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)))
    ),
    waiting as (
        select b.bucket, sum(b.n) as n, min(b.oldest) as oldest
        from (
            select m.stripe div 4 as bucket, count(*) as n, min(m.appended_at) as oldest
            from (select stripe, appended_at from outbox_message force index (primary) where route = ? order by position limit ?) m
            group by m.stripe div 4
            union all
            select k.bucket, 0, null from (select bucket from outbox_key where route = ? limit ?) k
        ) b
        group by b.bucket
    ),
    hot as (
        select cast(coalesce(sum(w.n), 0) as signed) as pending, min(w.oldest) as oldest,
               cast(coalesce(sum(w.bucket not in (select o.bucket from owned o)), 0) as signed) as unowned
        from waiting w
    )
select h.pending,
       h.oldest,
       (select min(p.appended_at) from outbox_parked p where p.route = ?),
       (select count(*) from (select 1 from outbox_parked where route = ? limit ?) c),
       (select count(*) from (select 1 from outbox_key where route = ? and held = 0 limit ?) c),
       (select count(*) from (select 1 from outbox_key where route = ? and held = 1 limit ?) c),
       (select count(*) from (select 1 from outbox_dead where route = ? limit ?) c),
       (select count(*) from (select 1 from outbox_scheduled where route = ? limit ?) c),
       h.unowned,
       (select min(d.due_at)
        from (select s.route, s.due_at from outbox_scheduled s
              where s.due_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
              order by s.due_at limit ?) d
        where d.route = ?),
       timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from hot h
