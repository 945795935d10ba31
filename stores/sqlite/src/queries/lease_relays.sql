-- The relays of a route, alive or not: ?1 route.
select relay, expires_at, lasts, unavailable_since, fingerprint, label from outbox_relay where route = ?1 order by relay
