-- One round of maintenance: $1 maximum rows of a kind, $2 retention of the history (null: there is
-- none), $3 of ids of handled messages, $4 their maximum age, $5 retention of dead relays.
select promoted, history_removed, handled_ids_removed, relays_removed, next_due
from outbox_maintain($1::integer, $2::bigint, $3::bigint, $4::bigint, $5::bigint)
