-- Transactions that may have taken a position and are not over, and the last assigned position,
-- which is read before them: the locks are read for the row of the sequence, which has to exist
-- first. A transaction locks the table before it takes a position, and until it is over. A prepared
-- one holds its lock without a process; its number is in the virtual transaction too. A standby
-- knows of no writer: the last column reports that one answers. It calls now() so that poolers that
-- spread reads ask the primary.
select s.last, l.virtualtransaction as writer, pg_is_in_recovery() and outbox_now() > 0 as lags
from (
    select case when q.is_called then q.last_value else 0 end as last from outbox_message_position q
) s
left join lateral (
    select p.virtualtransaction
    from pg_locks p
    where s.last is not null
      and p.locktype = 'relation' and p.mode = 'RowExclusiveLock' and p.granted
      and p.relation = 'outbox_message'::regclass
      and p.database = (select d.oid from pg_database d where d.datname = current_database())
    offset 0
) l on true
