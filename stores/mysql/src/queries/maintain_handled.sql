-- Removes ids of handled messages before an instant, the oldest first: the instant, how many.
delete from outbox_handled where handled_at < ? order by handled_at limit ?
