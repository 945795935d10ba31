-- Whether a consumer has handled a message: ?1 the consumer, ?2 the id.
select 1 from outbox_handled where consumer = ?1 and id = ?2
