-- Every route that a relay or a writer knows.
select route from outbox_lease union select route from outbox_stripe
