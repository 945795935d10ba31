-- Makes partitions of the history ahead and drops old ones: $1 how long it is kept, $2 up to how many bytes in the default one.
select dropped, too_large from outbox_turn_history($1::bigint, $2::bigint)
