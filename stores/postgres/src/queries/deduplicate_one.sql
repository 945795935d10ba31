-- Records that a consumer handles one message, whatever waits: $1 the consumer, $2 the id. A
-- returned id is new.
insert into outbox_handled (consumer, id) values ($1::text, $2::uuid) on conflict (consumer, id) do nothing returning id
