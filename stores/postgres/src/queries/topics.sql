-- Figures of the topics of a route: $1 route. Counts of each kind stop at $2 rows. A row without a topic counts rows of other routes that were
-- looked at.
with looked as materialized (
    -- Counted while it is read: the rows themselves would go to a file.
    select m.route, m.topic, count(*) as n, min(m.appended_at) as oldest
    from (select m.route, m.topic, m.appended_at from outbox_message m order by m.position limit $2::bigint) m
    group by m.route, m.topic
)
select 'waiting' as kind, l.topic, l.n as count, l.oldest, outbox_now() as now
from looked l where l.route = $1::text
union all
select 'waiting', null, coalesce(sum(l.n), 0)::bigint, null, outbox_now() from looked l where l.route <> $1
union all
select 'parked', p.topic, count(*), min(p.appended_at), outbox_now()
-- Along the rows as they were written. By key, each row would be on another page.
from (select p.topic, p.appended_at from outbox_parked p where p.route || '' = $1 order by p.position limit $2) p group by p.topic
union all
select 'retrying', k.topic, count(*), null, outbox_now()
from (select k.topic from outbox_key k where k.route = $1 and not k.held limit $2) k group by k.topic
union all
select 'held', k.topic, count(*), null, outbox_now()
from (select k.topic from outbox_key k where k.route || '' = $1 and k.held limit $2) k group by k.topic
union all
select 'dead', d.topic, count(*), null, outbox_now()
from (select d.topic from outbox_dead d where d.route = $1 limit $2) d group by d.topic
