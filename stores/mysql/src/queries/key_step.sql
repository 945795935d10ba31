-- Something was moved behind a key that stays as it is: route, topic, key.
update outbox_key set steps = steps + 1 where route = ? and topic = ? and `key` = ?
