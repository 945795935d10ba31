-- Removes ids of handled messages longer ago than ?1 microseconds, from the front, which is the oldest: ?2 at most.
-- A clock that was ahead for a while leaves rows of the future there. They expire with the first
-- row behind them that is of the past: found by bisection, because there may be any number of them.
-- Not at once: such an id may be a moment old, and a repeat would be handled twice.
with recursive
    clock as materialized (
        select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now
    ),
    halves (low, high) as (
        select f.number, (select max(number) from outbox_handled)
        from (select number, handled_at from outbox_handled order by number limit 1) f
        where f.handled_at > (select now from clock)
        union all
        select case when m.handled_at > clock.now then (h.low + h.high) / 2 + 1 else h.low end,
               case when m.handled_at > clock.now then h.high else (h.low + h.high) / 2 end
        from halves h
        cross join clock
        cross join outbox_handled m on m.number = (select min(t.number) from outbox_handled t where t.number >= (h.low + h.high) / 2)
        where h.low < h.high
    ),
    behind as materialized (
        select t.number, t.handled_at from outbox_handled t where t.number >= (select low from halves where low = high)
        order by t.number limit 1
    )
delete from outbox_handled
where number in (
    select number
    from (select number, handled_at from outbox_handled order by number limit ?2)
    where handled_at < (select now from clock) - ?1
       or (number < (select number from behind) and (select handled_at from behind) < (select now from clock) - ?1)
)
