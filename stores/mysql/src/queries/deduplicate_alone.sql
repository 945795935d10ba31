-- Notes that a consumer handles one message, where nothing waits for the consumer, hot or behind a failing key, in a transaction that is looked at before it
-- is committed: consumer, id, which call this is, topic, key, the consumer's route, twice. Nothing is noted where one of these is not so.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by, topic, `key`)
select ?, ?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, ?, ?
from dual
where @@autocommit = 0 and @outbox_looks = 1
  and not exists (select 1 from outbox_key where route = ?)
  and not exists (select 1 from outbox_message where route = ?)
limit 1
