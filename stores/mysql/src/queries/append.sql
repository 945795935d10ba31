-- One message. Repeated for several: the last group of values is the row.
insert into outbox_message
    (route, stripe, id, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at, position, number)
values
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
