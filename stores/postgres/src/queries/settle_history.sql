-- Like settle, and keeps the rows in the history.
with gone as (
    delete from outbox_message m
    where m.position = any($1::bigint[])
      and m.id = ($2::uuid[])[width_bucket(m.position, $1::bigint[])]
      and (select set_config('synchronous_commit', 'off', true)) is not null
    returning m.*
)
insert into outbox_history
    (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
     appended_at, delivered_at)
select g.position, g.id, g.route, g.bucket, g.topic, g.key, coalesce(g.key, g.id::text), g.event_type, g.schema_version, g.content_type,
       g.headers, g.payload, g.occurred_at, g.appended_at, outbox_now()
from (select * from gone order by position) g
