-- Removes delivered rows, each by its position and id: $1 positions, $2 their ids. Losing this in a crash costs a repeat, never a message, so
-- its commit waits for no disk; said here, because settings of a session do not outlive a transaction behind a pooler.
with lazily as materialized (
    select set_config('synchronous_commit', 'off', true) as is
)
delete from outbox_message m
using lazily, unnest($1::bigint[], $2::uuid[]) d(position, id)
where m.position = d.position and m.id = d.id and lazily.is is not null
