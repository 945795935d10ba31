-- How many stripes of a route have their row: the route.
select count(*) from outbox_stripe where route = ?
