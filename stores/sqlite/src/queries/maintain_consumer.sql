-- The next consumer behind ?1 that has ids of handled messages, and when the oldest of them was handled.
select consumer, handled_at from outbox_handled where consumer > ?1 order by consumer, handled_at limit 1
