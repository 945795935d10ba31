-- Removes delivered rows, each by its position and id: $1 positions, ascending and each once, $2
-- their ids. The positions are looked up together, in order, and the id of each stands at its place
-- among them: a binary search, which takes half the time of a hash of the pairs. Losing this in a
-- crash costs a repeat, never a message, so its commit does not wait for the disk; set here, because
-- settings of a session do not outlive a transaction behind a pooler.
delete from outbox_message m
where m.position = any($1::bigint[])
  and m.id = ($2::uuid[])[width_bucket(m.position, $1::bigint[])]
  and (select set_config('synchronous_commit', 'off', true)) is not null
