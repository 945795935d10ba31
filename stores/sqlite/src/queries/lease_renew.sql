-- Renews the leases of a relay: ?1 route, ?2 relay, ?3 low-water, ?4 buckets that it gives up
-- (JSON), ?5 until when it keeps these, ?6 pairs of bucket and epoch that the low-water covers
-- (JSON).
update outbox_lease
set low_water = case when (bucket, epoch) in (select value ->> 0, value ->> 1 from json_each(?6)) then ?3 else low_water end,
    expires_at = case when bucket in (select value from json_each(?4)) then coalesce(expires_at, ?5) end
where route = ?1 and relay = ?2
