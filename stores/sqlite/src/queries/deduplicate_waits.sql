-- Whether anything waits for a consumer, hot or behind a failing key: ?1 its route.
select exists (select 1 from outbox_key where route = ?1)
    or exists (select 1 from outbox_message where route = ?1 and route >= 'inbox/' and route < 'inbox0')
