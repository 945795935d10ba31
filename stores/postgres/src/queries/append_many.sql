-- Several messages, in the order given. The locks come before the positions: each step reads from the one before.
-- $1 buckets, ascending, $2 numbers of the keys' locks, ascending (none where buckets are locked exclusively: $3); then arrays, one element
-- for each message: $4 ids, $5 routes, $6 their buckets, $7 topics, $8 keys, $9 types, $10 schema versions, $11 content types, $12 headers,
-- $13 payloads, $14 occurred at.
with buckets as materialized (
    select count(
        case when $3::boolean
             then pg_advisory_xact_lock('outbox_message'::regclass::oid::integer, b.bucket) is null
             else pg_advisory_xact_lock_shared('outbox_message'::regclass::oid::integer, b.bucket) is null
        end) as locked
    from unnest($1::integer[]) b(bucket)
), keys as materialized (
    select count(
        pg_advisory_xact_lock(k.number # ('outbox_message'::regclass::oid::integer::bigint << 32) # (buckets.locked * 0)) is null) as locked
    from buckets, unnest($2::bigint[]) k(number)
)
insert into outbox_message
    (position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select nextval('outbox_message_position'), m.id, m.route, m.bucket, m.topic, m.key, m.event_type, m.schema_version, m.content_type, m.headers,
       m.payload, m.occurred_at
from keys,
     unnest($4::uuid[], $5::text[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[], $12::bytea[], $13::bytea[],
            $14::bigint[])
         as m(id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
where keys.locked >= 0
