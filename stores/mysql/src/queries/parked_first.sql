-- The first parked message of a key: route, topic, key.
select id from outbox_parked where route = ? and topic = ? and order_key = ? order by position limit 1
