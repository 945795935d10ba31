-- As deduplicate_alone, for one that waits itself, as the first of its key: consumer, id, which call this is, topic, key; route, topic, order key;
-- route, topic, order key, consumer; id, twice. The look-up of handled ids: see deduplicate_first.sql.
insert ignore into outbox_handled (consumer, id, handled_at, noted_by, topic, `key`)
select ?, ?, timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), ?, ?, ?
from dual
where @@autocommit = 0 and @outbox_looks = 1
  and not exists (select 1 from outbox_key where route = ? and topic = ? and `key` = ?)
  and coalesce(
          (select m.id
           from outbox_message m
           where m.route = ? and m.topic = ? and m.order_key = ?
             and (select 1 from outbox_handled a force index (primary) where a.consumer = ? and a.id = m.id) is null
           order by m.position limit 1),
          ?) = ?
limit 1
