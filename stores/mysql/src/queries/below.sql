-- In how many stripes messages have numbers above the counter, where none should be, and the lowest position of these, among the oldest and the newest
-- messages of a route: route, how many are looked at, route, how many are looked at, route.
select count(distinct m.stripe), min(m.position)
from (
    (select stripe, number, position from outbox_message force index (primary) where route = ? order by position limit ?)
    union all
    (select stripe, number, position from outbox_message force index (primary) where route = ? order by position desc limit ?)
) m
left join outbox_stripe s on s.route = ? and s.stripe = m.stripe
where m.number > coalesce(s.number, 0)
