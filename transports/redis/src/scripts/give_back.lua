-- Gives a unit back, so that another member need not wait until the lease is over.
--
-- KEYS: the unit's lease. ARGV: the member.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
