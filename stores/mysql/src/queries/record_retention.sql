-- Records a retention of handled ids, or renews its record: retention, maximum age.
insert into outbox_retention (handled_ids_kept, handled_ids_max_age, renewed_at)
values (?, ?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)))
on duplicate key update renewed_at = timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
