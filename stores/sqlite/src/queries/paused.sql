-- Pauses of a route; an empty topic means all of it.
select topic from outbox_pause where route = ?1 order by topic
