-- All buckets of a route: the route.
select bucket, relay, epoch, low_water, expires_at, since from outbox_lease where route = ? order by bucket
