-- Ids of parked messages of a key, from the first: route, topic, key, how many.
select id from outbox_parked where route = ? and topic = ? and order_key = ? order by position limit ?
