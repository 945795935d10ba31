-- Notes that a consumer handles one message, if it has not handled it: consumer, id, which call this is, topic, key.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by, topic, `key`)
values (?, ?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, ?, ?)
