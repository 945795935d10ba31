-- The first parked message of a key: ?1 route, ?2 topic, ?3 key.
select position, id from outbox_parked where route = ?1 and topic = ?2 and order_key = ?3 order by position limit 1
