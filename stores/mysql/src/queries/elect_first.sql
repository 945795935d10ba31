-- Takes a role that has never had a holder: role, relay, how long, how long. One row is written when it is this relay's.
insert ignore into outbox_role (role, relay, expires_at, lasts)
values (?, ?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + ?, ?)
