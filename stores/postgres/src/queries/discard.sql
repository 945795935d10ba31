-- Makes parked messages of a key dead letters: $1 route, $2 topic, $3 key, $4 how many.
select outbox_discard($1::text, $2::text, $3::text, $4::bigint)
