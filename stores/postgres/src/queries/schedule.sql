-- Messages that are due later, in the order given. Arrays, one element for each: $1 due at, or the delay where $12 is true, $2 ids, $3 routes,
-- $4 topics, $5 keys, $6 types, $7 schema versions, $8 content types, $9 headers, $10 payloads, $11 occurred at. One reading of the clock for all.
with clock as materialized (select outbox_now() as now)
insert into outbox_scheduled (due_at, id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select case when m.by_clock then clock.now + m.due else m.due end, m.id, m.route, m.topic, m.key, m.event_type, m.schema_version, m.content_type,
       m.headers, m.payload, m.occurred_at
from clock
cross join unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bytea[], $10::bytea[],
                  $11::bigint[], $12::boolean[])
         as m(due, id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, by_clock)
