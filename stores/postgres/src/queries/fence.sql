-- Which messages wait on a route, hot or parked, each where it was read: $1 positions, $2 their ids, $3 the route. Those that wait are locked, so that they
-- go on waiting: whoever removes one, or moves it, comes behind this transaction.
with at_primary as (select outbox_now()), asked as materialized (
    select a.position, a.id from unnest($1::bigint[], $2::uuid[]) a(position, id)
), hot as (
    select m.position, m.id
    from outbox_message m
    where m.position = any($1::bigint[]) and m.route = $3::text and (m.position, m.id) in (select a.position, a.id from asked a)
    for key share of m
), parked as (
    select p.position, p.id
    from outbox_parked p
    where p.position = any($1::bigint[]) and p.route = $3::text and (p.position, p.id) in (select a.position, a.id from asked a)
    for key share of p
)
select position, id from hot
union all
select position, id from parked
