-- Records an operation: actor, operation, route, topic, key, detail (JSON), number of messages, their ids.
insert into outbox_audit (at, actor, operation, route, topic, `key`, detail, affected, ids)
values (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, ?, ?, ?, ?, ?, ?, ?)
