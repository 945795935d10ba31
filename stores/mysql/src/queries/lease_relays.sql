-- The relays of a route, living or not: the route.
select relay, expires_at, lasts, unavailable_since, fingerprint from outbox_relay where route = ? order by relay
