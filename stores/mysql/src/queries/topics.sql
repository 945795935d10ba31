-- Figures of the topics of a route. Counts of each kind stop at so many rows. Route and limit, five times.
select 'waiting', topic, count(*), min(appended_at), timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from (select topic, appended_at from outbox_message force index (primary) where route = ? order by position limit ?) m group by topic
union all
select 'parked', topic, count(*), min(appended_at), timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from (select topic, appended_at from outbox_parked where route = ? limit ?) p group by topic
union all
select 'retrying', topic, count(*), null, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from (select topic from outbox_key where route = ? and held = 0 limit ?) k group by topic
union all
select 'held', topic, count(*), null, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from (select topic from outbox_key where route = ? and held = 1 limit ?) k group by topic
union all
select 'dead', topic, count(*), null, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
from (select topic from outbox_dead where route = ? limit ?) d group by topic
