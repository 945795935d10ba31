-- One message. The locks come before the position: each step reads from the one before, so that none is left out or moved.
-- $1 bucket, $2 number of the key's lock, $3 id, $4 route, $5 topic, $6 key, $7 type, $8 schema version, $9 content type, $10 headers,
-- $11 payload, $12 occurred at.
with bucket as materialized (
    select pg_advisory_xact_lock_shared('outbox_message'::regclass::oid::integer, $1::integer)
), key as materialized (
    select pg_advisory_xact_lock($2::bigint # ('outbox_message'::regclass::oid::integer::bigint << 32)) from bucket
)
insert into outbox_message
    (position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select nextval('outbox_message_position'), $3::uuid, $4::text, $1::integer, $5::text, $6::text, $7::text, $8::bigint, $9::text, $10::bytea,
       $11::bytea, $12::bigint
from key
