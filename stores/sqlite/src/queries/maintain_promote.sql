-- Appends messages that are due, in the order of their due time and then of their scheduling: ?1
-- now, ?2 limit.
insert into outbox_message
    (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at
from outbox_scheduled
where due_at <= ?1
order by due_at, number
limit ?2
