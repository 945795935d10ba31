-- A key is in its next state, otherwise as it was: version, route, topic, key.
update outbox_key set version = ? where route = ? and topic = ? and `key` = ?
