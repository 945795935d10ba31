-- Buckets that changed, each with this relay as its owner or with none: bucket, whether it is the relay's, epoch, low-water, beginning and, where there is one,
-- end of each (JSON); relay, route.
update outbox_lease l
join json_table(?, '$[*]' columns (
    bucket smallint path '$[0]', owned tinyint path '$[1]', epoch bigint path '$[2]', low_water bigint path '$[3]', since bigint path '$[4]', expires_at bigint path '$[5]'
)) j on j.bucket = l.bucket
set l.relay = case when j.owned = 1 then ? end, l.epoch = j.epoch, l.low_water = j.low_water, l.since = j.since, l.expires_at = j.expires_at
where l.route = ?
