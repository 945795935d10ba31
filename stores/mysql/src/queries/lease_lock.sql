-- Locks the leases of a route until the transaction ends: the route. Whoever changes leases begins with this.
select bucket from outbox_lease where route = ? order by bucket for update
