-- Gives the outbox another identity: $1 the identity.
insert into outbox_identity (id) values ($1) on conflict (one) do update set id = excluded.id
