-- A relay's row as it stands: ?1 route, ?2 relay.
select expires_at, lasts from outbox_relay where route = ?1 and relay = ?2
