-- Removes parked messages of a key: route, topic, key, how many, from the first.
delete from outbox_parked where route = ? and topic = ? and order_key = ? order by position limit ?
