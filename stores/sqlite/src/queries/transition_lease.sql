-- Whether a relay holds a bucket under this epoch, at this instant: ?1 route, ?2 bucket, ?3 relay, ?4 epoch, ?5 now.
select 1
from outbox_lease l
join outbox_relay r on r.route = l.route and r.relay = l.relay
where l.route = ?1 and l.bucket = ?2 and l.relay = ?3 and l.epoch = ?4
  and r.expires_at > ?5 and r.expires_at <= ?5 + 2 * r.lasts
  and (l.expires_at is null or l.expires_at > ?5)
