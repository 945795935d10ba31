-- Gives buckets back, those that are still this relay's under these epochs: low-water, route, relay, pairs of bucket and epoch (JSON).
update outbox_lease
set relay = null, expires_at = null, low_water = ?
where route = ? and relay = ?
  and (bucket, epoch) in (
      select j.bucket, j.epoch from json_table(?, '$[*]' columns (bucket smallint path '$[0]', epoch bigint path '$[1]')) j)
