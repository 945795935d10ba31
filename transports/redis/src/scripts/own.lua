#!lua flags=allow-oom
-- Takes or keeps one unit for a member. Also without memory: only members make room.
--
-- KEYS: the stream; the unit's owner (a hash that changes with each owner, which readers watch); the unit's lease (a string that expires).
-- ARGV: the member; the epoch under which it has the unit, or '' to take it; for how long, in milliseconds; the group; under
-- which name is read.
--
-- Answers the epoch, the last entry that the group was given, the first one that is pending under that name, if there is one, and 1 when the
-- group had to be made; or nothing, when the unit is another's.
local member, epoch, lasts = ARGV[1], ARGV[2], ARGV[3]
local owner = redis.call('HMGET', KEYS[2], 'member', 'epoch')
-- A lease that ran out and that nobody took is still its owner's; one that is there is the member's also when it did not hear of it.
local leased = redis.call('GET', KEYS[3])
if leased and leased ~= member then
  -- How long its leases last, a member's name says behind a colon. What has more than twice of that left was taken before the clock went back.
  local left, lasting = redis.call('PTTL', KEYS[3]), string.match(leased, ':(%d+)$') or lasts
  if left >= 0 and left <= 2 * tonumber(lasting) then return false end
end
local lost = 0
if epoch ~= '' then
  if owner[1] ~= member or owner[2] ~= epoch then return false end
else
  -- Every group was made when its consumer subscribed. One that is not there was lost since, and with it how far the consumer had come.
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[4], '0', 'MKSTREAM')
  if not made.err then
    lost = 1
  elseif not string.find(made.err, 'BUSYGROUP', 1, true) then
    return made
  end
  epoch = tostring(redis.call('HINCRBY', KEYS[2], 'epoch', 1))
  redis.call('HSET', KEYS[2], 'member', member)
end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
-- The stream was deleted: taken again, the unit gets a new one.
if groups.err then return false end
for _, group in ipairs(groups) do
  local of = {}
  for i = 1, #group, 2 do of[group[i]] = group[i + 1] end
  if of['name'] == ARGV[4] then
    local first = redis.call('XPENDING', KEYS[1], ARGV[4], '-', '+', 1, ARGV[5])[1]
    redis.call('SET', KEYS[3], member, 'PX', lasts)
    return { epoch, of['last-delivered-id'], first and first[1] or false, lost }
  end
end
return false
