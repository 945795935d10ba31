-- Records that a consumer handles one message, whatever waits: $1 the consumer, $2 the id, $3 the
-- topic, $4 the key. A returned id is new.
insert into outbox_handled (consumer, id, topic, key) values ($1::text, $2::uuid, $3::text, $4::text)
on conflict (consumer, id) do nothing
returning id
