-- Whether a consumer has handled a message: consumer, id.
select 1 from outbox_handled where consumer = ? and id = ?
