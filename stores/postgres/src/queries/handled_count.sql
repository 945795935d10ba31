-- Number of messages that a consumer has handled: $1 the consumer, $2 topic, $3 key, $4 since, $5 before (null: any).
with at_primary as (select outbox_now())
select count(*)
from outbox_handled h
where h.consumer = $1::text
  and ($2::text is null or h.topic = $2)
  and ($3::text is null or h.key = $3)
  and ($4::bigint is null or h.handled_at >= $4)
  and ($5::bigint is null or h.handled_at < $5)
