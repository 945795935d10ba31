-- Records an operation: ?1 actor, ?2 operation, ?3 route, ?4 topic, ?5 key, ?6 detail (JSON), ?7 number of messages, ?8 ids.
insert into outbox_audit (at, actor, operation, route, topic, key, detail, affected, ids)
values (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
