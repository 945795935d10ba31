-- Gives the outbox its first identity: $1 the identity. Does nothing if there is one.
insert into outbox_identity (id) values ($1) on conflict (one) do nothing
