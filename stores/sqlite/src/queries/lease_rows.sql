-- All buckets of a route, and whether they have an owner: ?1 route, ?2 now.
select l.bucket, l.relay, l.epoch, l.low_water,
       r.relay is not null and (l.expires_at is null or l.expires_at > ?2) as owned
from outbox_lease l
left join outbox_relay r
    on r.route = l.route and r.relay = l.relay and r.expires_at > ?2 and r.expires_at <= ?2 + 2 * r.lasts
where l.route = ?1
order by l.bucket
