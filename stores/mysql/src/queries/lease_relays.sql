-- The relays of a route, living or not: the route.
select relay, expires_at, lasts, unavailable_since, fingerprint, label from outbox_relay where route = ? order by relay
