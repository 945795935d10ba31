-- The first message of a key that waits for a consumer and is not handled yet, and whether an operator holds the key: route, topic, key,
-- consumer; route, topic, key, consumer; route, topic, key. Handled ids are looked up by the primary key: for `not exists`, servers may read all that
-- the consumer has ever handled.
select coalesce(
           (select p.id
            from outbox_parked p
            where p.route = ? and p.topic = ? and p.order_key = ?
              and (select 1 from outbox_handled a force index (primary) where a.consumer = ? and a.id = p.id) is null
            order by p.position limit 1),
           (select m.id
            from outbox_message m
            where m.route = ? and m.topic = ? and m.order_key = ?
              and (select 1 from outbox_handled a force index (primary) where a.consumer = ? and a.id = m.id) is null
            order by m.position limit 1)
       ),
       exists (select 1 from outbox_key where route = ? and topic = ? and `key` = ? and held = 1)
