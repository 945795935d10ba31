-- An operator holds a key: ?1 route, ?2 topic, ?3 key, ?4 bucket, ?5 version, ?6 now.
insert into outbox_key (route, topic, key, bucket, version, held, since)
values (?1, ?2, ?3, ?4, ?5, 1, ?6)
on conflict (route, topic, key) do update set version = excluded.version, held = 1, next_attempt_at = null
