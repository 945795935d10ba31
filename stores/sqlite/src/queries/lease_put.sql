-- Buckets that changed, each with this relay as its owner or with none: ?1 route, ?2 relay, ?3 bucket, whether it is the relay's, epoch, low-water,
-- end and beginning of each (JSON).
insert into outbox_lease (route, bucket, relay, epoch, low_water, expires_at, since)
select ?1, value ->> 0, case when value ->> 1 then ?2 end, value ->> 2, value ->> 3, value ->> 4, value ->> 5
from json_each(?3)
where true
on conflict (route, bucket) do update set
    relay = excluded.relay, epoch = excluded.epoch, low_water = excluded.low_water, expires_at = excluded.expires_at,
    since = excluded.since
