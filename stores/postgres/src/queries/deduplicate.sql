-- Records that a consumer handles messages: $1 the consumer, $2 its route, and arrays: $3 ids, $4
-- topics, $5 order keys, $6 keys. A returned id is new. A missing one is a duplicate, or others of
-- its key wait in front of it: the next statement tells. If messages of a key wait, only the first
-- one here can be new: a repeat further back may be of the waiting one, and must not let those in
-- front of it pass. The offsets turn each check of keys and handled messages into an index look-up.
-- As a join, with a plan that was made while few were recorded, every message would read all that
-- the consumer has ever handled.
insert into outbox_handled (consumer, id, topic, key)
select $1::text, a.id, a.topic, a.key
from (select distinct on (u.id) u.*, row_number() over (partition by u.topic, u.order_key order by u.at) as place
      from unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) with ordinality u(id, topic, order_key, key, at)
      order by u.id, u.at) a
where not exists (select from outbox_key k where k.route = $2 and k.topic = a.topic and k.key = a.order_key offset 0)
  and coalesce(
      (select m.id = a.id and a.place = 1
       from outbox_message m
       where m.route = $2 and m.topic = a.topic and m.key = a.key and starts_with(m.route, 'inbox/')
         and not exists (select from outbox_handled d where d.consumer = $1 and d.id = m.id offset 0)
       order by m.position
       limit 1),
      true)
on conflict (consumer, id) do nothing
returning id
