-- One fetch: rows of buckets that this relay holds an unexpired lease of, in order, behind ?6 and up to ?7.
-- ?1 route, ?2 relay, ?3 buckets (JSON; null: all), ?4 and ?5 topic and key (null: any), ?8
-- positions to leave out (JSON), ?9 whether all is muted, ?10 muted topics (JSON), ?11 muted pairs
-- of topic and key (JSON), ?12 maximum rows, ?13 maximum bytes of a returned payload. State: 0 a
-- message, 1 its key is failing (without payload), 2 muted (without content). The fetch reads no
-- row past one without a bucket. The inner select decides on rows, in the order of the primary key
-- and up to the limit; the outer one reads content. The last row, of state 3, gives in size the
-- position up to which the fetch has looked: the end, or the row without a bucket; 0 if the relay
-- does not hold all ?14 buckets, which each row tells in lapsed. At most ?15 positions are scanned, from the first row on: if there
-- is more behind them, the last row is of state 4. Rows up to ?6 are not counted as more.
with held as materialized (
    select l.bucket
    from outbox_relay r
    cross join outbox_lease l on l.route = r.route and l.relay = r.relay
    where r.route = ?1 and r.relay = ?2
      and r.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
      and r.expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * r.lasts
      and (l.expires_at is null or l.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
      and (?3 is null or l.bucket in (select value from json_each(?3)))
), bound as materialized (
    select (select count(*) from held) < ?14 as lapsed,
           min(?7, coalesce((select min(u.position) - 1 from outbox_message u where u.bucket is null), ?7)) as asked,
           min(coalesce((select min(position) from outbox_message where position > ?6), 0), 9223372036854775807 - ?15) + ?15 as walk
)
select page.position, page.state,
       case when page.state < 2 then octet_length(m.headers) else 0 end + case page.state when 0 then octet_length(m.payload) else 0 end as size,
       m.id, m.bucket, m.topic, m.key, m.event_type, m.schema_version, m.content_type, m.occurred_at, m.appended_at,
       case when page.state < 2 and octet_length(m.headers) <= ?13 then m.headers end as headers,
       case when page.state = 0 and octet_length(m.payload) <= ?13 then m.payload end as payload,
       (select lapsed from bound) as lapsed
from (
    select w.position,
           case
               when ?9 then 2
               when w.topic in (select value from json_each(?10)) then 2
               when (w.topic, w.order_key) in (select value ->> 0, value ->> 1 from json_each(?11)) then 2
               when exists (
                   select 1 from outbox_key k where k.route = ?1 and k.topic = w.topic and k.key = w.order_key
               ) then 1
               else 0
           end as state
    from outbox_pending w
    where w.position > ?6
      and w.position <= (select min(asked, walk) from bound)
      and w.route = ?1
      and w.bucket in (select bucket from held)
      and (?4 is null or w.topic = ?4)
      and (?5 is null or w.order_key = ?5)
      and w.position not in (select value from json_each(?8))
    order by w.position
    limit ?12
) page
cross join outbox_message m on m.position = page.position
union all
select null, case when b.walk < min(b.asked, (select max(position) from outbox_message where position > ?6)) then 4 else 3 end,
       case when b.walk < min(b.asked, (select max(position) from outbox_message where position > ?6)) then b.walk
            when not b.lapsed
            then min(?7, coalesce((select min(u.position) - 1 from outbox_message u where u.bucket is null),
                                  (select max(position) from outbox_message), 0))
            else 0 end,
       null, null, null, null, null, null, null, null, null, null, null, b.lapsed
from bound b
