-- Removes parked messages of a key: ?1 route, ?2 topic, ?3 key, ?4 positions (JSON), ?5 their ids, 16 bytes each.
delete from outbox_parked
where rowid in (
    select p.rowid
    from json_each(?4) j
    cross join outbox_parked p on p.position = j.value
    where p.id = substr(?5, j.key * 16 + 1, 16) and p.route = ?1 and p.topic = ?2 and p.order_key = ?3
)
