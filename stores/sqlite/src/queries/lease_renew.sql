-- Renews what a relay owns: ?1 route, ?2 relay, ?3 low-water, ?4 buckets that it gives up (JSON), ?5 until when it keeps these.
update outbox_lease
set low_water = ?3,
    expires_at = case when bucket in (select value from json_each(?4)) then coalesce(expires_at, ?5) end
where route = ?1 and relay = ?2
