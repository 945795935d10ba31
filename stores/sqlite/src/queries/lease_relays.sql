-- The live relays of a route: ?1 route, ?2 now. A life that ends implausibly late is none.
select relay, lasts, unavailable_since, fingerprint
from outbox_relay
where route = ?1 and expires_at > ?2 and expires_at <= ?2 + 2 * lasts
order by relay
