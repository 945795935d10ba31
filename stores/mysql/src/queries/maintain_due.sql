-- Messages that are due, in the order of their due time and then of their scheduling, and nobody else's: now, how many.
select entry, route, stripe
from outbox_scheduled force index (outbox_scheduled_due)
where due_at <= ?
order by due_at, entry
limit ?
for update skip locked
