-- Gives buckets back: $1 route, $2 relay, $3 buckets, $4 their epochs, $5 low-water, $6 the epochs that it covers by bucket, $7 in which life,
-- $8 whether behind a pooler, $9 whether the relay leaves.
select outbox_give_back($1::text, $2::uuid, $3::integer[], $4::bigint[], $5::bigint, $6::bigint[], $7::bigint, $8::boolean, $9::boolean)::text
