-- Selects rows of outbox_dead to append again: the oldest, in the order in which they stood in
-- their keys.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 ids as hexadecimal (JSON; null: any), ?5 since, ?6 before (null: any), ?7 how many.
-- ?8 type (null: any).
select number, topic, order_key, id
from (
    select number, position, topic, order_key, id
    from outbox_dead
    where (?1 is null or route = ?1)
      and (?2 is null or topic = ?2)
      and (?3 is null or order_key = ?3)
      and (?8 is null or event_type = ?8)
      and (?4 is null or hex(id) in (select value from json_each(?4)))
      and (?5 is null or died_at >= ?5)
      and (?6 is null or died_at < ?6)
    order by number
    limit ?7
)
order by position, number
