-- Forgets that a consumer has handled messages, the oldest first: parameters as of handled_count, ?6 how many.
delete from outbox_handled
where number in (
    select number
    from outbox_handled
    where consumer = ?1
      and (?2 is null or topic = ?2)
      and (?3 is null or key = ?3)
      and (?4 is null or handled_at >= ?4)
      and (?5 is null or handled_at < ?5)
    order by handled_at
    limit ?6
)
returning id
