-- Pauses a topic of a route, or with an empty topic the route: $1 route, $2 topic.
insert into outbox_pause (route, topic) values ($1::text, $2::text) on conflict do nothing
