-- One round of maintenance: $1 most rows of a kind, $2 how long the history is kept (null: there is none), $3 admitted ids, $4 dead relays.
select promoted, history_removed, admissions_removed, relays_removed, next_due
from outbox_maintain($1::integer, $2::bigint, $3::bigint, $4::bigint)
