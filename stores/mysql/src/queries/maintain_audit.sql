-- Removes recorded operations before an instant, the oldest first: the instant, how many.
delete from outbox_audit where at < ? order by at limit ?
