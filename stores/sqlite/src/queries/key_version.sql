-- A key is in its next state, otherwise as it was: ?1 route, ?2 topic, ?3 key, ?4 version.
update outbox_key set version = ?4 where route = ?1 and topic = ?2 and key = ?3
