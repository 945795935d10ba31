-- Routes with the mark that all of their buckets have reached, and the lowest position at or below it, where none should be.
select marked.route, marked.low_water,
       (select min(m.position) from outbox_message m where m.route = marked.route and m.position <= marked.low_water)
from (select route, min(low_water) as low_water from outbox_lease group by route having count(*) = 256) marked
