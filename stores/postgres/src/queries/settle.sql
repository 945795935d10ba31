-- Removes delivered rows, each by its position and id: $1 positions, $2 their ids. The positions
-- are looked up together, in order; the pairs are looked up in a hash, behind a case, because
-- otherwise they would be joined, row by row. Losing this in a crash costs a repeat, never a
-- message, so its commit does not wait for the disk; set here, because settings of a session do not
-- outlive a transaction behind a pooler.
with lazily as materialized (
    select set_config('synchronous_commit', 'off', true) as is
)
delete from outbox_message m
using lazily
where m.position = any($1::bigint[])
  and case when (m.position, m.id) in (select d.position, d.id from unnest($1::bigint[], $2::uuid[]) d(position, id)) then true end
  and lazily.is is not null
