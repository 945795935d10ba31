-- Removes relays whose life was over, or implausible, ?1 microseconds ago: ?2 at most.
delete from outbox_relay
where (route, relay) in (
    select route, relay
    from outbox_relay
    where expires_at < cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 - ?1 or expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * lasts + ?1
    limit ?2
)
