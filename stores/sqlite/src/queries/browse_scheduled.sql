-- Scheduled messages, the next due first.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 ids as hexadecimal (JSON; null: any), ?5 since, ?6 before (null: any), ?7 how many,
-- ?8 how many to pass over.
select id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at,
       due_at
from outbox_scheduled
where (?1 is null or route = ?1)
  and (?2 is null or topic = ?2)
  and (?3 is null or key = ?3)
  and (?4 is null or hex(id) in (select value from json_each(?4)))
  and (?5 is null or due_at >= ?5)
  and (?6 is null or due_at < ?6)
order by due_at, number
limit ?7 offset ?8
