-- Removes delivered rows, each by its position and id. ?1: positions (JSON); ?2: their ids, 16 bytes each, in the same order.
delete from outbox_message
where position in (
    select m.position
    from json_each(?1) j
    cross join outbox_message m on m.position = j.value
    where m.id = substr(?2, j.key * 16 + 1, 16)
)
