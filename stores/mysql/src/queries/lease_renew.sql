-- Renews what a relay owns: low-water, buckets that it gives up (JSON), until when it keeps these, route, relay.
update outbox_lease
set low_water = ?,
    expires_at = case when bucket in (select j.bucket from json_table(?, '$[*]' columns (bucket smallint path '$')) j)
                      then coalesce(expires_at, ?) end
where route = ? and relay = ?
