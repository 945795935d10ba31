-- Steps of failing keys: $1 a JSON array of them, $2 whether a history is kept.
select outbox_transition($1::jsonb, $2::boolean)
