-- The other living relays of a route whose sessions are on this server, when each session was found to be lost, and whether it is there: route, relay,
-- server, now.
select relay, session_lost_at, not is_free_lock(concat('outbox_session_', session))
from outbox_relay
where route = ? and relay <> ? and session is not null and server = ? and expires_at > ?
