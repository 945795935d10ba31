-- One message that is due later. Repeated for several: the last group of values is the row. It ends with an instant and false, or with a
-- delay and true.
insert into outbox_scheduled
    (route, stripe, id, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at, due_at)
values
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? + if(?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), 0))
