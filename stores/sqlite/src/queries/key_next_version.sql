-- The number of the next state of a key, of whichever.
update outbox_counter set value = value + 1 where name = 'key_version' returning value
