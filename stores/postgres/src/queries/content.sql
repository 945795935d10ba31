-- The headers and payloads of rows whose content did not come along: $1 their positions, $2 their ids.
select m.position, m.headers, m.payload
from unnest($1::bigint[], $2::uuid[]) w(position, id)
join outbox_message m on m.position = w.position and m.id = w.id
