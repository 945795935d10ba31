insert into outbox_message
    (payload, route, stripe, position, number, id, topic, `key`, event_type, schema_version, content_type, headers, occurred_at)
select convert(? using binary), s.route, s.stripe, s.position, s.number,
       unhex(replace(json_unquote(json_extract(m.fields, '$.id')), '-', '')),
       json_unquote(json_extract(m.fields, '$.topic')),
       json_unquote(json_extract(m.fields, '$.key')),
       json_unquote(json_extract(m.fields, '$.event_type')),
       cast(json_extract(m.fields, '$.schema_version') as signed),
       json_unquote(json_extract(m.fields, '$.content_type')),
       coalesce(json_extract(m.fields, '$.headers'), ''),
       cast(json_extract(m.fields, '$.occurred_at') as signed)
from (
    select p.fields,
           cast(json_unquote(json_extract(p.fields, '$.route')) as binary) as route,
           cast(json_extract(p.fields, '$.stripe') as signed) as stripe
    from (select json_extract(convert(? using utf8mb4), '$') as fields) p
) m
join outbox_stripe s on s.route = m.route and s.stripe = m.stripe
