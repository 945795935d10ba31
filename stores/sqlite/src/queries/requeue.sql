-- Appends rows of outbox_dead again, in the order given: ?1 pairs of number and bucket (JSON).
insert into outbox_message
    (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
select h.id, h.route, j.value ->> 1, h.topic, h.key, h.event_type, h.schema_version, h.content_type, h.headers, h.payload, h.occurred_at
from json_each(?1) j
cross join outbox_dead h on h.number = j.value ->> 0
