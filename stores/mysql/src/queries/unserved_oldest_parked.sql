-- When the oldest of some parked messages of a route was appended: the route, and how many are looked at.
select min(appended_at)
from (select appended_at from outbox_parked force index (primary) where route = ? order by topic, order_key, position limit ?) looked
