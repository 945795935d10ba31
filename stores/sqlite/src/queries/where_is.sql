-- Whether a message of a key is in the hot table, and whether it is parked: ?1 route, ?2 topic, ?3 key, ?4 position, ?5 id.
select exists (select 1 from outbox_pending where position = ?4 and id = ?5 and route = ?1 and topic = ?2 and order_key = ?3) as hot,
       exists (select 1 from outbox_parked where position = ?4 and id = ?5 and route = ?1 and topic = ?2 and order_key = ?3) as parked
