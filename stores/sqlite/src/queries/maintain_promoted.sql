-- Removes the messages that maintain_promote appended: parameters as there.
delete from outbox_scheduled
where number in (select number from outbox_scheduled where due_at <= ?1 order by due_at, number limit ?2)
