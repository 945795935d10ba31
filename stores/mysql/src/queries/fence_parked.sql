-- Whether a message is parked where it was read: route, topic, key, position, id. It is locked, as those in the hot table.
select position from outbox_parked where route = ? and topic = ? and order_key = ? and position = ? and id = ? for update
