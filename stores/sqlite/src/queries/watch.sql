-- The newest messages behind a position that are of a route: position, how many rows are looked at, route.
select position, bucket
from (select position, bucket, route from outbox_message where position > ?1 order by position desc limit ?2)
where route = ?3
