-- Failing and held keys, the longest failing first. What is parked is counted for the keys of the page only.
-- $1 route, $2 topic, $3 key (null: any), $4 ids (null: any), $5 since, $6 before (null: any), $7 how many, $8 how many to pass over.
with at_primary as (select outbox_now())
select k.route, k.topic, k.key, k.held, k.next_attempt_at, k.attempts, k.first_failure, k.last_failure, k.since,
       (select count(*) from outbox_parked p where p.route = k.route and p.topic = k.topic and p.order_key = k.key) as parked,
       outbox_first_parked(k.route, k.topic, k.key) as first
from (
    select k.route, k.topic, k.key, k.held, k.next_attempt_at, k.attempts, k.first_failure, k.last_failure, k.since
    from outbox_key k
    where ($1::text is null or k.route = $1)
      and ($2::text is null or k.topic = $2)
      and ($3::text is null or k.key = $3)
      and ($4::uuid[] is null or exists (
          select from outbox_parked p
          where p.route = k.route and p.topic = k.topic and p.order_key = k.key and p.id = any($4)))
      and ($5::bigint is null or k.since >= $5)
      and ($6::bigint is null or k.since < $6)
    order by k.since + 0 asc, k.route asc, k.topic asc, k.key asc
    limit $7 offset $8
) k
order by k.since + 0 asc, k.route asc, k.topic asc, k.key asc
