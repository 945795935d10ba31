-- Makes every parked message of a key a dead letter: $1 route, $2 topic, $3 key.
select outbox_discard($1::text, $2::text, $3::text)
