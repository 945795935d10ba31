-- Removes scheduled messages: $1 ids.
delete from outbox_scheduled where id = any($1::uuid[])
