-- Removes ids of messages that consumer ?1 handled at or before ?2, the oldest first: ?3 at most.
delete from outbox_handled
where number in (select number from outbox_handled where consumer = ?1 and handled_at <= ?2 order by handled_at limit ?3)
