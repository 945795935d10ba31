-- Gives the outbox another identity: ?1 the identity.
insert or replace into outbox_identity (one, id) values (1, ?1)
returning null as id
