-- Routes, their live relays and their pauses. Whatever was appended has stripes; of keys and scheduled messages so many are looked at, twice.
select 'route', r.route, null
from (
    select route from outbox_lease where bucket = 0
    union
    select route from outbox_stripe where stripe = 0
    union
    select k.route from (select route from outbox_key order by route limit ?) k
    union
    select s.route from (select route from outbox_scheduled order by due_at limit ?) s
) r
union all
select 'relay', route, null
from outbox_relay
where expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
  and expires_at <= timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 2 * lasts
union all
select 'pause', route, topic from outbox_pause
