-- When a consumer handled its latest message up to an instant: consumer, the instant.
select max(handled_at) from outbox_handled where consumer = ? and handled_at <= ?
