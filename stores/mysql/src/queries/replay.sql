-- Appends delivered messages again, each in its new place: entry, stripe, number and position of each (JSON).
insert into outbox_message
    (route, position, stripe, number, id, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at)
select h.route, j.position, j.stripe, j.number, h.id, h.topic, h.`key`, h.event_type, h.schema_version, h.content_type, h.headers, h.payload,
       h.occurred_at
from json_table(?, '$[*]' columns (
         entry bigint path '$[0]', stripe smallint path '$[1]', number bigint path '$[2]', position bigint path '$[3]')) j
straight_join outbox_history h on h.entry = j.entry
