-- A failing key, locked until the transaction ends: route, topic, key.
select version, held, failing from outbox_key where route = ? and topic = ? and `key` = ? for update
