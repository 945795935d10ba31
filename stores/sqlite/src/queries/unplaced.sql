-- Rows that were written without a bucket, the oldest first: ?1 at most.
select p.position, p.topic, p.order_key from outbox_pending p where p.bucket is null order by p.position limit ?1
