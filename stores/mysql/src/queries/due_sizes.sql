-- What the first parked messages of a key take: route, topic, key, most messages.
select position, length(headers) + length(payload)
from outbox_parked
where route = ? and topic = ? and order_key = ?
order by position
limit ?
