#!lua flags=allow-oom
-- Says that a member is there to take units, or that it is not, and who else is. Also without memory: only members make room.
--
-- KEYS: the members of the consumer, by the time until which they count.
-- ARGV: the member; for how long it counts, in milliseconds, or 0 when it takes no more units.
--
-- Answers the members that count.
local member, lasts = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if lasts == 0 then
  redis.call('ZREM', KEYS[1], member)
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lasts), member)
end

-- How long a member counts, its name says behind a colon. One that would count for more than twice as long was here before the clock went back.
local function lasting(of)
  return tonumber(string.match(of, ':(%d+)$') or string.match(member, ':(%d+)$') or lasts)
end
local members, of = {}, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #of, 2 do
  if tonumber(of[i + 1]) > now + 2 * lasting(of[i]) then
    redis.call('ZREM', KEYS[1], of[i])
  else
    members[#members + 1] = of[i]
  end
end
return members
