-- An operator holds a key: route, topic, key, bucket, version, now.
insert into outbox_key (route, topic, `key`, bucket, version, held, since)
values (?, ?, ?, ?, ?, 1, ?)
on duplicate key update version = values(version), held = 1, next_attempt_at = null
