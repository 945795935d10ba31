-- Failing keys of buckets that this relay holds, the next due first, those that are not due yet behind them: ?1 route, ?2 relay, ?3 buckets
-- (JSON; null: all), ?4 pairs of topic and key to leave out (JSON), ?5 whether all is muted, ?6 muted topics (JSON), ?7 muted pairs of
-- topic and key (JSON), ?8 most keys, ?9 keys before them.
select k.topic, k.key, k.bucket, k.version, k.failing, k.attempts, k.first_failure,
       k.next_attempt_at - (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000) as due_in
from outbox_key k
where k.route = ?1 and k.held = 0
  and not ?5
  and k.bucket in (
      select l.bucket
      from outbox_relay r
      cross join outbox_lease l on l.route = r.route and l.relay = r.relay
      where r.route = ?1 and r.relay = ?2
        and r.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
        and r.expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * r.lasts
        and (l.expires_at is null or l.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
        and (?3 is null or l.bucket in (select value from json_each(?3)))
  )
  and (k.topic, k.key) not in (select value ->> 0, value ->> 1 from json_each(?4))
  and k.topic not in (select value from json_each(?6))
  and (k.topic, k.key) not in (select value ->> 0, value ->> 1 from json_each(?7))
order by k.next_attempt_at
limit ?8 offset ?9
