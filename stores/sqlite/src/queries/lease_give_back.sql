-- Gives buckets back, those that are still this relay's under these epochs: ?1 route, ?2 relay, ?3 low-water, ?4 pairs of bucket and
-- epoch (JSON), ?5 those that the low-water covers.
update outbox_lease
set relay = null, expires_at = null,
    low_water = case when (bucket, epoch) in (select value ->> 0, value ->> 1 from json_each(?5)) then ?3 else low_water end
where route = ?1 and relay = ?2
  and (bucket, epoch) in (select value ->> 0, value ->> 1 from json_each(?4))
