-- When consumer ?1 handled its latest message at or before ?2.
select max(handled_at) from outbox_handled where consumer = ?1 and handled_at <= ?2
