-- Frees buckets that a relay no longer owns: ?1 route, ?2 relay, ?3 now, ?4 whether its own life
-- was over.
update outbox_lease
set relay = null, expires_at = null
where route = ?1 and relay = ?2 and (?4 or expires_at <= ?3)
