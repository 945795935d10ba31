-- One fetch: rows of buckets that this relay holds an unexpired lease of, in order, behind $6 and up to $7. One range of the primary key: every
-- other condition is a filter on it, and what is the same for all rows is computed once, before.
-- $1 route, $2 relay, $3 buckets (256 bits), $4 and $5 topic and key (null: any), $8 positions to
-- leave out, $9 whether all is muted, $10 muted topics, $11 and $12 topics and keys of muted keys,
-- $13 maximum rows, $14 maximum bytes of returned content, $16 maximum positions scanned. State: 0
-- a message, 1 its key is failing (without payload), 2 muted (without content). The last row, of
-- state 3, gives in size the position up to which the fetch has looked, or 0 if the relay does not
-- hold every requested bucket; then its state is 8 higher. It is of state 4 if there is more behind
-- that, and of state 5 if a standby answers. Its last instant is the life of the server.
with held as materialized (
    select bit_or(set_bit(b'0'::bit(256), l.bucket, 1)) as buckets, count(*) as n
    from (select outbox_now() as at) now, outbox_relay r
    join outbox_lease l on l.route = r.route and l.relay = r.relay
    where r.route = $1 and r.relay = $2
      and r.expires_at > now.at and r.expires_at <= now.at + 2 * r.lasts
      and (l.expires_at is null or l.expires_at > now.at)
      and get_bit($3::bytea, l.bucket) = 1
), failing as materialized (
    select exists (select from outbox_key k where k.route = $1) as some
), usual as materialized (
    -- Nearly always true: nothing is muted, no key is failing. Then no row is looked at further.
    select not ($9::boolean or cardinality($10::text[]) + cardinality($11::text[]) > 0 or f.some) as is
    from failing f
), bound as materialized (
    -- From the first row on: missing rows below it cost nothing.
    select least((select min(m.position) from outbox_message m where m.position > $6), $7 - $16::bigint) + $16::bigint as upto
), page as (
    select m.position, m.id, m.bucket::bigint as bucket, m.topic, m.key, m.event_type, m.schema_version, m.content_type, m.headers, m.payload,
           m.occurred_at, m.appended_at, octet_length(m.headers) + octet_length(m.payload) as bytes,
           case
               when (select u.is from usual u) then 0
               when $9::boolean then 2
               when m.topic = any($10::text[]) then 2
               when cardinality($11::text[]) > 0
                    and (m.topic, coalesce(m.key, m.id::text)) in (select u.t, u.k from unnest($11::text[], $12::text[]) u(t, k)) then 2
               when (select f.some from failing f)
                    and exists (
                        select from outbox_key k where k.route = $1 and k.topic = m.topic and k.key = coalesce(m.key, m.id::text)
                    ) then 1
               else 0
           end as state
    from outbox_message m
    where m.position > $6 and m.position <= (select b.upto from bound b)
      and m.route = $1
      -- A program that gives a position may give an invalid bucket: its row is read by the owner of
      -- another one, and becomes a dead letter.
      and ((select h.n = 256 from held h) or get_bit((select h.buckets from held h), m.bucket & 255::smallint) = 1)
      and ($4::text is null or m.topic = $4)
      and ($5::text is null or coalesce(m.key, m.id::text) = $5)
      and (cardinality($8::bigint[]) = 0 or m.position not in (select unnest($8::bigint[])))
    order by m.position
    limit $13
)
select p.position, p.id, p.bucket, p.topic, p.key, p.event_type, p.schema_version, p.content_type,
       case p.state when 0 then case when p.bytes <= $14 then p.headers end
                    when 1 then case when octet_length(p.headers) <= $14 then p.headers end
       end as headers,
       case when p.state = 0 and p.bytes <= $14 then p.payload end as payload,
       p.occurred_at, p.appended_at, p.state::bigint as state,
       case p.state when 0 then p.bytes when 1 then octet_length(p.headers) else 0 end::bigint as size
from page p
union all
select null, null, null, null, null, null, null, null, null, null, null, outbox_life(true),
       case when pg_is_in_recovery() then 5 when b.upto < $7 and l.last > b.upto then 4 else 3 end
           + case when h.n < $15::bigint then 8 else 0 end,
       case when b.upto < $7 and l.last > b.upto then b.upto
            when h.n = $15::bigint then least($7, greatest($6, coalesce(l.last, $6)))
            else 0 end
from held h, bound b, (select max(m.position) as last from outbox_message m where m.position > $6) l
