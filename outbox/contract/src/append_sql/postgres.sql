with message as (
    select m.id, m.route, m.topic, m.key, m.event_type, m.schema_version, m.content_type,
           convert_to(coalesce(m.headers::text, ''), 'UTF8') as headers, coalesce($1, null::bytea) as payload, m.occurred_at,
           coalesce(m.due_at, outbox_now() + m.due_after) as due_at
    from json_to_record($2::text::json) as m(
        id uuid, route text, topic text, key text, event_type text, schema_version bigint, content_type text, headers json,
        occurred_at bigint, due_at bigint, due_after bigint)
), scheduled as (
    insert into outbox_scheduled (id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, due_at)
    select id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, due_at
    from message where due_at is not null
)
insert into outbox_message (id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at
from message where due_at is null
