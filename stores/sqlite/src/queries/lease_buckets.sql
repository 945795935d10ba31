-- The rows of a route's buckets, for a route that is new. ?1 route, ?2 buckets (JSON).
insert or ignore into outbox_lease (route, bucket) select ?1, value from json_each(?2)
