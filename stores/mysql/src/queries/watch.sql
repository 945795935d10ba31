-- The newest messages of a route that were appended in the last ten seconds by the server's clock, which positions are made of: its route.
select position, stripe
from outbox_message force index (primary)
where route = ? and position > (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) - 10000000) * 1024
order by position desc
limit 64
