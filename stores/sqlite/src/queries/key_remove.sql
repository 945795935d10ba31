-- A key flows again: ?1 route, ?2 topic, ?3 key.
delete from outbox_key where route = ?1 and topic = ?2 and key = ?3
