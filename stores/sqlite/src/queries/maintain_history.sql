-- Removes what is older than ?1 microseconds from the front of the history, which is in the order of delivery: ?2 at most.
delete from outbox_history
where number in (
    select number
    from (select number, delivered_at from outbox_history order by number limit ?2)
    where delivered_at < cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 - ?1
)
