-- Gives buckets back, those that are still this relay's under these epochs: ?1 route, ?2 relay, ?3 low-water, ?4 pairs of bucket and
-- epoch (JSON).
update outbox_lease
set relay = null, expires_at = null, low_water = ?3
where route = ?1 and relay = ?2
  and (bucket, epoch) in (select value ->> 0, value ->> 1 from json_each(?4))
