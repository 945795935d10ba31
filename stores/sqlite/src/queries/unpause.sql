-- Resumes a topic or a route: ?1 route, ?2 topic.
delete from outbox_pause where route = ?1 and topic = ?2
returning null as id
