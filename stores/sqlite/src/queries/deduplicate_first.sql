-- The first message of a key that waits for a consumer and is not handled yet, and whether an
-- operator holds the key: ?1 the consumer, ?2 its route, ?3 topic, ?4 the message's order key, ?5
-- its key (null: it has none, and no hot message is ordered with it).
select coalesce(
           (select p.id
            from outbox_parked p
            where p.route = ?2 and p.topic = ?3 and p.order_key = ?4
              and not exists (select 1 from outbox_handled a where a.consumer = ?1 and a.id = p.id)
            order by p.position limit 1),
           (select m.id
            from outbox_message m
            where m.route = ?2 and m.topic = ?3 and m.key = ?5 and m.route >= 'inbox/' and m.route < 'inbox0'
              and not exists (select 1 from outbox_handled a where a.consumer = ?1 and a.id = m.id)
            order by m.position limit 1)
       ) as first,
       exists (select 1 from outbox_key where route = ?2 and topic = ?3 and key = ?4 and held = 1) as held
