-- The headers and payloads of rows that were returned without them: $1 their positions, $2 their
-- ids. Null where the row is not visible. The last column reports that a standby answers; it calls
-- now() because poolers that spread reads send a statement with a volatile function to the primary.
select w.position, m.headers, m.payload, pg_is_in_recovery() and outbox_now() > 0 as lags
from unnest($1::bigint[], $2::uuid[]) w(position, id)
left join outbox_message m on m.position = w.position and m.id = w.id
