-- Forgets that a consumer has handled messages, the oldest first, and records it: parameters as of handled_count, $6 how many, $7 actor,
-- $8 operation, $9 detail.
with durably as materialized (
    select outbox_durably() is null as is
), gone as (
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
    returning o.id
), counted as materialized (
    select count(*) as n, array_agg(g.id) as ids from gone g
)
select c.n, case when c.n > 0 then outbox_note($7, $8, null, $2, $3, $9, c.n, c.ids) end as noted from counted c
