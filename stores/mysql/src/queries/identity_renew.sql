-- Gives the outbox another identity: the identity.
replace into outbox_identity (one, id) values (1, ?)
