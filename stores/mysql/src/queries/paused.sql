-- What is paused of a route; an empty topic stands for all of it: the route.
select topic from outbox_pause where route = ? order by topic
