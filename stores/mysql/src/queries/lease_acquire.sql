-- Takes buckets that are free, each under the next epoch: relay, route, buckets (JSON).
update outbox_lease
set relay = ?, epoch = epoch + 1, expires_at = null
where route = ? and bucket in (select j.bucket from json_table(?, '$[*]' columns (bucket smallint path '$')) j)
