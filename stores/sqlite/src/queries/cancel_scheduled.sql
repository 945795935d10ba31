-- Removes scheduled messages: ?1 ids as hexadecimal (JSON).
delete from outbox_scheduled where hex(id) in (select value from json_each(?1))
returning id
