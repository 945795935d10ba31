-- The first route with a parked message between two routes: one step along the primary key.
select route
from outbox_parked force index (primary)
where route > ? and route < ?
order by route, topic, order_key, position
limit 1
