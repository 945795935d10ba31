-- Makes partitions of the history ahead and drops old ones: $1 how long it is kept.
select outbox_turn_history($1::bigint)
