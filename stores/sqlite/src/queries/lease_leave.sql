-- A relay is gone: ?1 route, ?2 relay.
delete from outbox_relay where route = ?1 and relay = ?2
