-- Failing keys of buckets that this relay holds, the next due first, those that are not due yet
-- behind them, with the sizes of their first parked messages: $1 route, $2 relay, $3 buckets
-- (bits), $4 and $5 topics and keys to leave out, $6 whether all is muted, $7 muted topics, $8 and
-- $9 topics and keys of muted keys, $10 maximum keys, $11 maximum messages of each, $12 keys before
-- them. A key without a time, which somebody has released by hand, is due.
with held as materialized (
    select bit_or(set_bit(b'0'::bit(256), l.bucket, 1)) as buckets
    from outbox_relay r
    join outbox_lease l on l.route = r.route and l.relay = r.relay
    where r.route = $1 and r.relay = $2
      and r.expires_at > outbox_now() and r.expires_at <= outbox_now() + 2 * r.lasts
      and (l.expires_at is null or l.expires_at > outbox_now())
      and get_bit($3::bytea, l.bucket) = 1
), keys as materialized (
    select k.*
    from outbox_key k
    where k.route = $1 and not k.held
      and not $6::boolean
      and get_bit((select h.buckets from held h), k.bucket & 255::smallint) = 1
      and (k.topic, k.key) not in (select u.t, u.k from unnest($4::text[], $5::text[]) u(t, k))
      and k.topic <> all($7::text[])
      and (k.topic, k.key) not in (select u.t, u.k from unnest($8::text[], $9::text[]) u(t, k))
    order by k.next_attempt_at nulls first
    limit $10 offset $12
)
select k.topic, k.key, k.bucket::bigint as bucket, k.version, k.failing, k.attempts, k.first_failure,
       coalesce(k.next_attempt_at - outbox_now(), 0) as due_in,
       p.positions, p.ids, p.sizes
from keys k
cross join lateral (
    select coalesce(array_agg(f.position order by f.position), '{}') as positions,
           coalesce(array_agg(f.id order by f.position), '{}') as ids,
           coalesce(array_agg(f.size order by f.position), '{}') as sizes
    from (
        select q.position, q.id, (octet_length(q.headers) + octet_length(q.payload))::bigint as size
        from outbox_parked q
        where q.route = k.route and q.topic = k.topic and q.order_key = k.key
        order by q.position
        limit $11
    ) f
) p
order by k.next_attempt_at nulls first
