-- Failing and held keys, the longest failing first. What is parked is counted for the keys of the page only.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 ids as hexadecimal (JSON; null: any), ?5 since, ?6 before (null: any), ?7 how many,
-- ?8 how many to pass over.
-- Nothing but names is sorted: a page far behind the beginning sorts nearly all keys.
with page as materialized (
    select k.since, k.route, k.topic, k.key
    from outbox_key k
    where (?1 is null or k.route = ?1)
      and (?2 is null or k.topic = ?2)
      and (?3 is null or k.key = ?3)
      and (?4 is null or exists (
          select 1 from outbox_parked p
          where p.route = k.route and p.topic = k.topic and p.order_key = k.key and hex(p.id) in (select value from json_each(?4))))
      and (?5 is null or k.since >= ?5)
      and (?6 is null or k.since < ?6)
    order by k.since asc, k.route asc, k.topic asc, k.key asc
    limit ?7 offset ?8
)
select k.route, k.topic, k.key, k.version, k.held, k.next_attempt_at, k.failing, k.attempts, k.first_failure, k.last_failure, k.since,
       (select count(*) from outbox_parked p where p.route = k.route and p.topic = k.topic and p.order_key = k.key) as parked,
       (select p.id from outbox_parked p where p.route = k.route and p.topic = k.topic and p.order_key = k.key
        order by p.position limit 1) as first
from page
cross join outbox_key k on k.route = page.route and k.topic = page.topic and k.key = page.key
order by page.since asc, page.route asc, page.topic asc, page.key asc
