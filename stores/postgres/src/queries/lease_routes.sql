-- The routes that relays have served, up to a limit.
with at_primary as (select outbox_now())
select distinct l.route from outbox_lease l where l.bucket = 0 order by l.route limit 1000
