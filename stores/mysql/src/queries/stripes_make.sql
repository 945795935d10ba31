-- The rows of a route's stripes that are not there: route, route.
insert ignore into outbox_stripe (route, stripe)
with digit as (
    select 0 as n union all select 1 union all select 2 union all select 3 union all select 4 union all select 5 union all select 6 union all select 7
)
select ?, a.n + 8 * b.n + 64 * c.n + 512 * d.n
from digit a cross join digit b cross join digit c cross join digit d
where d.n < 2
  and not exists (select 1 from outbox_stripe s where s.route = ? and s.stripe = a.n + 8 * b.n + 64 * c.n + 512 * d.n)
