-- Takes a pause back: $1 route, $2 topic.
delete from outbox_pause where route = $1::text and topic = $2::text
