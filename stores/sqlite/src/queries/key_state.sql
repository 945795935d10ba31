-- A failing key: ?1 route, ?2 topic, ?3 key.
select version, held, failing, attempts from outbox_key where route = ?1 and topic = ?2 and key = ?3
