insert into outbox_scheduled
    (payload, route, stripe, id, topic, `key`, event_type, schema_version, content_type, headers, occurred_at, due_at)
select convert(? using binary),
       json_unquote(json_extract(m.fields, '$.route')),
       cast(json_extract(m.fields, '$.stripe') as signed),
       unhex(replace(json_unquote(json_extract(m.fields, '$.id')), '-', '')),
       json_unquote(json_extract(m.fields, '$.topic')),
       json_unquote(json_extract(m.fields, '$.key')),
       json_unquote(json_extract(m.fields, '$.event_type')),
       cast(json_extract(m.fields, '$.schema_version') as signed),
       json_unquote(json_extract(m.fields, '$.content_type')),
       coalesce(json_extract(m.fields, '$.headers'), ''),
       cast(json_extract(m.fields, '$.occurred_at') as signed),
       coalesce(cast(json_extract(m.fields, '$.due_at') as signed),
                timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) +
                    cast(json_extract(m.fields, '$.due_after') as signed))
from (select json_extract(convert(? using utf8mb4), '$') as fields) m
