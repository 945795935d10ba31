-- A key flows again: route, topic, key.
delete from outbox_key where route = ? and topic = ? and `key` = ?
