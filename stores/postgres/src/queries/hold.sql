-- Holds a key: $1 route, $2 topic, $3 key.
select outbox_hold($1::text, $2::text, $3::text)::text
