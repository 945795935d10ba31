-- The rows of a route's buckets, for a route that is new: route, buckets (JSON).
insert ignore into outbox_lease (route, bucket)
select ?, j.bucket from json_table(?, '$[*]' columns (bucket smallint path '$')) j
