-- Whether anything waits for a consumer, hot or behind a failing key: its route, twice.
select exists (select 1 from outbox_key where route = ?) or exists (select 1 from outbox_message where route = ?)
