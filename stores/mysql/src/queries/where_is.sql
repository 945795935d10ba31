-- Whether a message of a key is in the hot table, and whether it is parked: route, topic, key, position, id; the same again.
select exists (select 1 from outbox_message where route = ? and topic = ? and order_key = ? and position = ? and id = ?) as hot,
       exists (select 1 from outbox_parked where route = ? and topic = ? and order_key = ? and position = ? and id = ?) as parked
