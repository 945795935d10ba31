insert into outbox_message (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select unhex(replace(f ->> 'id', '-', '')), f ->> 'route', f ->> 'bucket', f ->> 'topic', f ->> 'key', f ->> 'event_type',
       f ->> 'schema_version', f ->> 'content_type', coalesce(cast(f -> 'headers' as blob), x''), ?1, f ->> 'occurred_at'
from (select ?2 as f)
