-- Removes recorded operations longer ago than $1 microseconds, the oldest first: $2 at most.
delete from outbox_audit a
where a.number in (
    select o.number from outbox_audit o where o.at < (select outbox_now()) - $1::bigint order by o.at limit $2::bigint
)
