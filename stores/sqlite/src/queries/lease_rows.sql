-- All buckets of a route: ?1 route.
select bucket, relay, epoch, since, low_water, expires_at from outbox_lease where route = ?1 order by bucket
