-- Parked messages, whole: $1 their positions, $2 their ids. The last column is there for its volatile function: poolers that spread reads send this to the
-- primary.
select p.position, p.id, p.bucket::bigint, p.topic, p.key, p.event_type, p.schema_version, p.content_type, p.headers, p.payload, p.occurred_at,
       p.appended_at, pg_is_in_recovery() and outbox_now() > 0
from unnest($1::bigint[], $2::uuid[]) w(position, id)
join outbox_parked p on p.position = w.position and p.id = w.id
