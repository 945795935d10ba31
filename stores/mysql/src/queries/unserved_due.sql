-- Routes of scheduled messages that are due, each with when its first was: now, and how many are looked at.
select route, min(due_at)
from (select route, due_at from outbox_scheduled force index (outbox_scheduled_due) where due_at <= ? order by due_at, entry limit ?) looked
group by route
