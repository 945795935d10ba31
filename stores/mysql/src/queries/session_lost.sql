-- A session was found to be lost, or is there again: since when, route, relay.
update outbox_relay set session_lost_at = ? where route = ? and relay = ?
