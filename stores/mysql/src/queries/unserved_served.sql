-- Routes that a live relay serves.
select distinct route
from outbox_relay
where expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
  and expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * lasts
