-- Removes parked messages of a key: ?1 route, ?2 topic, ?3 key, ?4 how many, from the first.
delete from outbox_parked
where rowid in (
    select rowid from outbox_parked where route = ?1 and topic = ?2 and order_key = ?3 order by position limit ?4
)
