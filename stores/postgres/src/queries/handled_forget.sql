-- Forgets that a consumer has handled messages, the oldest first: parameters as of handled_count, $6 how many.
with durably as materialized (
    select outbox_durably() is null as is
)
delete from outbox_handled o
using durably
where o.consumer = $1::text
  and o.id in (
    select h.id
    from outbox_handled h
    where h.consumer = $1::text
      and ($2::text is null or h.topic = $2)
      and ($3::text is null or h.key = $3)
      and ($4::bigint is null or h.handled_at >= $4)
      and ($5::bigint is null or h.handled_at < $5)
    order by h.handled_at
    limit $6::bigint
)
  and durably.is is not null
