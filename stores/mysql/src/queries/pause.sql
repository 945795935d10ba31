-- Pauses a topic of a route, or with an empty topic the route: route, topic.
insert ignore into outbox_pause (route, topic) values (?, ?)
