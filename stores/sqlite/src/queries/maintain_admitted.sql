-- Removes ids that were admitted longer ago than ?1 microseconds, from the front, which is the oldest: ?2 at most.
delete from outbox_admitted
where number in (
    select number
    from (select number, admitted_at from outbox_admitted order by number limit ?2)
    where admitted_at < cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 - ?1
)
