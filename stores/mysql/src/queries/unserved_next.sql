-- The first route with a hot message between two routes: one step along the primary key.
select route from outbox_message force index (primary) where route > ? and route < ? order by route, position limit 1
