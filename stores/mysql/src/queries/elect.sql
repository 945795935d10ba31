-- Takes or keeps a role that has had a holder: relay, how long, how long, role, relay. One row is matched when it is this relay's.
update outbox_role
set relay = ?, expires_at = timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + ?, lasts = ?
where role = ?
  and (relay = ?
       or expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
       or expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * lasts)
