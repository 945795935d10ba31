-- Numbers of the next states of keys, of whichever: how many.
update outbox_counter set value = last_insert_id(value + ?) where name = 'key_version'
