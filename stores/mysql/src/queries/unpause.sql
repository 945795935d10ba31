-- Takes a pause back: route, topic.
delete from outbox_pause where route = ? and topic = ?
