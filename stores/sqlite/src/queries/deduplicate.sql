-- Records that a consumer handles messages: ?1 the consumer, ?2 for each an array (JSON) of its id as
-- hexadecimal, its topic, and its key or null. A returned id is new.
insert into outbox_handled (consumer, id, handled_at, topic, key)
select ?1, unhex(j.value ->> 0), cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000, j.value ->> 1, j.value ->> 2
from json_each(?2) j
where true
on conflict (consumer, id) do nothing
returning id
