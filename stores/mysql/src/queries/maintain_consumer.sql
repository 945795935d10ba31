-- The next consumer that has ids of handled messages, and when the oldest of them was handled: the consumer before it.
select consumer, handled_at from outbox_handled where consumer > ? order by consumer, handled_at limit 1
