-- Creates partitions of the history ahead and drops old ones, except those of other roles:
-- $1 retention, $2 maximum bytes in the default one.
select dropped, too_large, of_others from outbox_turn_history($1::bigint, $2::bigint)
