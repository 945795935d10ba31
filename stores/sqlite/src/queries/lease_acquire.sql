-- Takes buckets that are free, each under the next epoch: ?1 route, ?2 relay, ?3 buckets (JSON).
update outbox_lease
set relay = ?2, epoch = epoch + 1, expires_at = null
where route = ?1 and bucket in (select value from json_each(?3))
