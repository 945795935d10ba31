-- Number of messages that a consumer has handled: ?1 the consumer, ?2 topic, ?3 key, ?4 since, ?5 before (null: any).
select count(*)
from outbox_handled
where consumer = ?1
  and (?2 is null or topic = ?2)
  and (?3 is null or key = ?3)
  and (?4 is null or handled_at >= ?4)
  and (?5 is null or handled_at < ?5)
