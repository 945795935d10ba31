-- One heartbeat: $1 route, $2 relay, $3 label, $4 how long, $5 whether its transport is available,
-- $6 fingerprint, $7 low-water, $8 the epochs that it covers by bucket, $9 in which life, $10
-- whether behind a pooler, $11 buckets that it gives up.
select buckets, epochs, low_waters, fair_share, relays, agree, paused, now, life, recheck
from outbox_heartbeat($1::text, $2::uuid, $3::text, $4::bigint, $5::boolean, $6::bigint, $7::bigint, $8::bigint[], $9::bigint, $10::boolean,
                      $11::integer[])
