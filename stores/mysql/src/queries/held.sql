-- Buckets that a relay holds an unexpired lease of, as four times 64 bits, how far the route reaches, and the time: its route,
-- route, relay. Shifted by 64 a bit is gone; as a branch of its own, a zero would make the last of the 64 a number that is cut.
select bit_or(1 << case when l.bucket < 64 then l.bucket else 64 end),
       bit_or(1 << case when l.bucket between 64 and 127 then l.bucket - 64 else 64 end),
       bit_or(1 << case when l.bucket between 128 and 191 then l.bucket - 128 else 64 end),
       bit_or(1 << case when l.bucket > 191 then l.bucket - 192 else 64 end),
       coalesce((select max(position) from outbox_message where route = ?), 0),
       timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from outbox_relay r
straight_join outbox_lease l on l.route = r.route and l.relay = r.relay
where r.route = ? and r.relay = ?
  and r.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
  and r.expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * r.lasts
  and (l.expires_at is null or l.expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)))
