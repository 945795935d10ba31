-- A relay is gone: route, relay.
delete from outbox_relay where route = ? and relay = ?
