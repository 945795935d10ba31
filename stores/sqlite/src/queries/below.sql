-- Routes with messages at or below the mark that all of their buckets have reached, where none
-- should stand. Scans at most ?1 rows for a route.
select marked.route, marked.low_water,
       (select position
        from (select route, position from outbox_message where position <= marked.low_water order by position limit ?1) below
        where below.route = marked.route
        order by position limit 1) as position
from (select route, min(low_water) as low_water from outbox_lease group by route having count(*) = 256) marked
order by marked.route
