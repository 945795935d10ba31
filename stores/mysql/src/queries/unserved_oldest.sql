-- When the oldest of the first hot messages of a route was appended: the route, and how many are looked at.
select min(appended_at)
from (select appended_at from outbox_message force index (primary) where route = ? order by position limit ?) looked
