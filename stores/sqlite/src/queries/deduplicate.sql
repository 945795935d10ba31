-- Records that a consumer handles messages: ?1 the consumer, ?2 their ids as hexadecimal (JSON). A
-- returned id is new.
insert into outbox_handled (consumer, id, handled_at)
select ?1, unhex(j.value), cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
from json_each(?2) j
where true
on conflict (consumer, id) do nothing
returning id
