insert into outbox_scheduled (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, due_at)
select unhex(replace(f ->> 'id', '-', '')), f ->> 'route', f ->> 'bucket', f ->> 'topic', f ->> 'key', f ->> 'event_type',
       f ->> 'schema_version', f ->> 'content_type', coalesce(cast(f -> 'headers' as blob), x''), ?1, f ->> 'occurred_at',
       coalesce(f ->> 'due_at', cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + (f ->> 'due_after'))
from (select ?2 as f)
