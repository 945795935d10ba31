-- Pauses a topic of a route, or with an empty topic the route: $1 route, $2 topic.
with durably as materialized (
    select outbox_durably() is null as is
)
insert into outbox_pause (route, topic)
select $1::text, $2::text from durably where durably.is is not null
on conflict do nothing
