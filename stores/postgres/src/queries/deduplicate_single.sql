-- Like the statement for many, for one message: $1 the consumer, $2 its route, $3 the id, $4 the
-- topic, $5 its order key, $6 the key. The server estimates more than one element for arrays, so it
-- would plan the other statement anew each time, which takes longer than to run it.
-- The offset: see deduplicate.sql.
insert into outbox_handled (consumer, id, topic, key)
select $1::text, $3::uuid, $4::text, $6::text
where not exists (select from outbox_key k where k.route = $2::text and k.topic = $4::text and k.key = $5::text)
  and coalesce(
      (select m.id
       from outbox_message m
       where m.route = $2::text and m.topic = $4::text and m.key = $6::text and starts_with(m.route, 'inbox/')
         and not exists (select from outbox_handled d where d.consumer = $1::text and d.id = m.id offset 0)
       order by m.position
       limit 1),
      $3::uuid) = $3::uuid
on conflict (consumer, id) do nothing
returning id
