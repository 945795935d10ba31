-- Recorded operations, the oldest first.
-- ?1 route, ?2 topic, ?3 key (null: any), ?4 unused, ?5 since, ?6 before (null: any), ?7 how many, ?8 how many to pass over, ?9 ids of which an
-- entry names one (JSON; null: any).
select at, actor, operation, route, topic, key, detail, affected, ids
from outbox_audit
where (?1 is null or route = ?1)
  and (?2 is null or topic = ?2)
  and (?3 is null or key = ?3)
  and (?9 is null or exists (select 1 from json_each(?9) where instr(ids, value) > 0))
  and (?5 is null or at >= ?5)
  and (?6 is null or at < ?6)
order by number asc
limit ?7 offset ?8
