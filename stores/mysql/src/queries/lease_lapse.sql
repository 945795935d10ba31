-- Frees what a relay does not own any more: route, relay, whether its own life was over, now.
update outbox_lease set relay = null, expires_at = null where route = ? and relay = ? and (? or expires_at <= ?)
