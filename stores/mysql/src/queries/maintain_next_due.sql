-- When the next scheduled message is due.
select min(due_at) from outbox_scheduled
