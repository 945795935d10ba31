-- Reason why a message was not recorded: whether it was recorded before; else the first message of
-- its key that waits for the consumer and is not handled yet, and whether an operator holds the
-- key. $1 the consumer, $2 its route, $3 topic, $4 the message's order key, $5 its key (null: it
-- has none, and no hot message is ordered with it), $6 its id.
-- The offsets: see deduplicate.sql.
with at_primary as (select outbox_now())
select exists (select from outbox_handled a where a.consumer = $1 and a.id = $6::uuid) as noted,
       coalesce(
           (select p.id
            from outbox_parked p
            where p.route = $2 and p.topic = $3 and p.order_key = $4
              and not exists (select from outbox_handled a where a.consumer = $1 and a.id = p.id offset 0)
            order by p.position limit 1),
           (select m.id
            from outbox_message m
            where m.route = $2 and m.topic = $3 and m.key = $5::text and starts_with(m.route, 'inbox/')
              and not exists (select from outbox_handled a where a.consumer = $1 and a.id = m.id offset 0)
            order by m.position limit 1)
       ) as first,
       exists (select from outbox_key k where k.route = $2 and k.topic = $3 and k.key = $4 and k.held) as held
