-- Removes recorded operations longer ago than ?1 microseconds, the oldest first: ?2 at most.
delete from outbox_audit
where number in (
    select number from outbox_audit where at < cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 - ?1 order by at limit ?2
)
