-- Pauses a topic of a route, or with an empty topic the route: ?1 route, ?2 topic.
insert or ignore into outbox_pause (route, topic) values (?1, ?2)
returning null as id
