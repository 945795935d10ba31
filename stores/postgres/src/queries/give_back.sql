-- Gives buckets back: $1 route, $2 relay, $3 buckets, $4 their epochs, $5 low-water, $6 whether the relay leaves.
select outbox_give_back($1::text, $2::uuid, $3::integer[], $4::bigint[], $5::bigint, $6::boolean)::text
