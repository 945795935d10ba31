-- Gives the outbox its first identity: ?1 the identity. Does nothing if there is one.
insert or ignore into outbox_identity (one, id) values (1, ?1)
