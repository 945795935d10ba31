-- Relays, buckets and pauses of a route, and the clock: $1 route.
select 'clock' as kind, null::uuid as relay, null as name, null::bigint as bucket, null::bigint as epoch, null::bigint as since,
       null::bigint as low_water, null::bigint as expires_at, null::bigint as lasts, null::bigint as unavailable_since,
       null::bigint as fingerprint, outbox_now() as now
union all
select 'relay', r.relay, r.label, null, null, null, r.low_water, r.expires_at, r.lasts, r.unavailable_since, r.fingerprint, null
from outbox_relay r
where r.route = $1
union all
select 'bucket', l.relay, null, l.bucket, l.epoch, l.since, coalesce(l.low_water, r.low_water, 0), l.expires_at, null, null, null, null
from outbox_lease l
left join outbox_relay r on r.route = l.route and r.relay = l.relay
where l.route = $1
union all
select 'pause', null, p.topic, null, null, null, null, null, null, null, null, null
from outbox_pause p
where p.route = $1
