-- A relay's lease of a bucket under an epoch, locked until the transaction ends: route, bucket, relay, epoch.
select r.expires_at, r.lasts, l.expires_at
from outbox_lease l
straight_join outbox_relay r on r.route = l.route and r.relay = l.relay
where l.route = ? and l.bucket = ? and l.relay = ? and l.epoch = ?
lock in share mode
