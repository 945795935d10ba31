-- Lets a key try again now: $1 route, $2 topic, $3 key.
select outbox_release($1::text, $2::text, $3::text)
