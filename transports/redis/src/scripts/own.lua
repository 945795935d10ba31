-- Takes or keeps one unit for a member.
--
-- KEYS: the stream; the unit's owner (a hash that changes with each owner, which readers watch); the unit's lease (a string that expires).
-- ARGV: the member; the epoch under which it has the unit, or '' to take it; for how long, in milliseconds; the group; where a new group starts.
--
-- Answers the epoch and the last entry that the group was given; or nothing, when the unit is another's.
local member, epoch, lasts = ARGV[1], ARGV[2], ARGV[3]
local owner = redis.call('HMGET', KEYS[2], 'member', 'epoch')
if epoch ~= '' then
  -- A lease that ran out and that nobody took is still this member's.
  if owner[1] ~= member or owner[2] ~= epoch then return false end
  local leased = redis.call('GET', KEYS[3])
  if leased and leased ~= member then return false end
else
  if redis.call('EXISTS', KEYS[3]) == 1 then return false end
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[4], ARGV[5], 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
  epoch = tostring(redis.call('HINCRBY', KEYS[2], 'epoch', 1))
  redis.call('HSET', KEYS[2], 'member', member)
end
redis.call('SET', KEYS[3], member, 'PX', lasts)
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
-- The stream was deleted: taken again, the unit gets a new one.
if groups.err then return false end
for _, group in ipairs(groups) do
  local of = {}
  for i = 1, #group, 2 do of[group[i]] = group[i + 1] end
  if of['name'] == ARGV[4] then return { epoch, of['last-delivered-id'] } end
end
return false
