-- Whether a consumer has handled a message: $1 the consumer, $2 the id.
with at_primary as (select outbox_now())
select exists (select from outbox_handled a where a.consumer = $1::text and a.id = $2::uuid)
