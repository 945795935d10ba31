-- Of several that move due messages at once, one does and the others wait: else a later one could be moved first.
select value from outbox_counter where name = 'promoting' for update
