-- Removes ids of messages that a consumer handled up to an instant, the oldest first: consumer, the instant, how many.
delete from outbox_handled where consumer = ? and handled_at <= ? order by handled_at limit ?
