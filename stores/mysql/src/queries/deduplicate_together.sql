-- As deduplicate_alone, for several: consumer, which call this is, for each an array as in deduplicate, the consumer's route, twice.
-- All of these: a session's sql_select_limit holds where no limit is named.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by, topic, `key`)
select ?, unhex(j.id), timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, unhex(j.topic), unhex(j.name)
from json_table(?, '$[*]' columns (id char(32) path '$[0]', topic varchar(510) path '$[1]', name varchar(510) path '$[2]')) j
where @@autocommit = 0 and @outbox_looks = 1
  and not exists (select 1 from outbox_key where route = ?)
  and not exists (select 1 from outbox_message where route = ?)
limit 18446744073709551615
