-- The headers and payloads of rows whose content did not come along: $1 their positions, $2 their ids. Null where the row is not seen. The last column says
-- that a standby answers; now is asked for because poolers that spread reads send a statement with a volatile function to the primary.
select w.position, m.headers, m.payload, pg_is_in_recovery() and outbox_now() > 0 as lags
from unnest($1::bigint[], $2::uuid[]) w(position, id)
left join outbox_message m on m.position = w.position and m.id = w.id
