-- Whether a consumer has handled a message: $1 the consumer, $2 the id.
select exists (select from outbox_handled a where a.consumer = $1::text and a.id = $2::uuid)
