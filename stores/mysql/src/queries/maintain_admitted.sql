-- Removes ids that were admitted before an instant, the oldest first: the instant, how many.
delete from outbox_admitted where admitted_at < ? order by admitted_at limit ?
