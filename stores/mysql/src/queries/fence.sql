-- Whether a message is in the hot table where it was read: route, position, id. It is locked, so that it goes on waiting: whoever removes it, or moves it,
-- comes behind this transaction. One by one: MySQL locks nothing that is joined with a list in JSON.
select position from outbox_message where route = ? and position = ? and id = ? for update
