-- What is paused of a route; an empty topic stands for all of it.
select topic from outbox_pause where route = ?1 order by topic
