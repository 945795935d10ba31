-- Gives the outbox its first identity: the identity. Does nothing if there is one.
insert ignore into outbox_identity (one, id) values (1, ?)
