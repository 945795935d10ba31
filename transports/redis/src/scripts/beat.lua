-- Says that a member is there to take units, or that it is not, and who else is.
--
-- KEYS: the members of the consumer, by the time until which they count.
-- ARGV: the member; for how long it counts, in milliseconds, or 0 when it takes no more units.
--
-- Answers the members that count.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return redis.call('ZRANGE', KEYS[1], 0, -1)
