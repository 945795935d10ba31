-- Removes the rows that park copied from the hot table: ?1 positions (JSON).
delete from outbox_message
where position in (
    select m.position
    from json_each(?1) j
    cross join outbox_message m on m.position = j.value
    cross join outbox_parked p on p.position = m.position and p.id = m.id
)
