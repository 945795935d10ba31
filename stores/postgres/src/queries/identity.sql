-- Reads the identity of the outbox.
with at_primary as (select outbox_now())
select id from outbox_identity
