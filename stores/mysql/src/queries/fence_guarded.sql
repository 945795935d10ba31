-- Whether a message is in the hot table where it was read, in a transaction that is looked at before it is committed: route, position, id. It is
-- locked, so that it goes on waiting: whoever removes it, or moves it, comes behind this transaction.
select position from outbox_message where route = ? and position = ? and id = ? and @@autocommit = 0 and @outbox_looks = 1 for update
