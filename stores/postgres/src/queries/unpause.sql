-- Resumes a topic or a route: $1 route, $2 topic.
with durably as materialized (
    select outbox_durably() is null as is
)
delete from outbox_pause p using durably where p.route = $1::text and p.topic = $2::text and durably.is is not null
