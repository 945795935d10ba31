-- One message that is due later. Repeated for several: the last group of values is the row. It ends
-- with an instant and false, or with a delay and true.
insert into outbox_scheduled
    (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, due_at)
values
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? + case when ? then cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 else 0 end)
