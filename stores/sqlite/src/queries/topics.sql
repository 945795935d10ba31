-- Figures of the topics of a route: ?1 route. Counts of each kind stop at ?2 rows. A row without a topic counts rows of other routes that were
-- looked at.
with looked as materialized (
    select route, topic, appended_at from outbox_message order by position limit ?2
)
select 'waiting' as kind, topic, count(*) as count, min(appended_at) as oldest,
       cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now
from looked where route = ?1 group by topic
union all
select 'waiting', null, count(*), null, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 from looked where route <> ?1
union all
select 'parked', topic, count(*), min(appended_at), cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from (select topic, appended_at from outbox_parked where route = ?1 order by position limit ?2) group by topic
union all
select 'retrying', topic, count(*), null, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from (select topic from outbox_key where route = ?1 and held = 0 limit ?2) group by topic
union all
select 'held', topic, count(*), null, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from (select topic from outbox_key where route = ?1 and held = 1 limit ?2) group by topic
union all
select 'dead', topic, count(*), null, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from (select topic from outbox_dead where route = ?1 limit ?2) group by topic
