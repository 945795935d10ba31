-- In how many stripes messages have numbers above the counter, where none should be, and the lowest position of these: route, how many rows are
-- looked at, route.
select count(distinct m.stripe), min(m.position)
from (select w.stripe, w.number, w.position from outbox_message w force index (primary) where w.route = ? order by w.position limit ?) m
left join outbox_stripe s on s.route = ? and s.stripe = m.stripe
where m.number > coalesce(s.number, 0)
