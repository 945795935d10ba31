-- Reads the identity of the outbox.
select id from outbox_identity
