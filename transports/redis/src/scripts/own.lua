#!lua flags=allow-oom
-- Takes or keeps one unit for a member. Also without memory: only members make room.
--
-- KEYS: the stream; the unit's owner (a hash that changes with each owner, which readers watch); the unit's lease (a string that expires).
-- ARGV: the member; the epoch under which it has the unit, or '' to take it; for how long, in milliseconds; the group; under
-- which name is read; behind which entry a group begins that is not there any more, or '' when the unit is not to be taken then.
--
-- Answers the epoch, the last entry that the group was given, the first one that is pending under that name, if there is one, 1 when the
-- group had to be made, and how many entries were removed before the group was given them; or nothing, when the unit is another's. The epoch is ''
-- when the unit was not taken, for what the group had is gone. Where the stream is gone as well, nothing can be repeated, and it is taken.
local member, epoch, lasts, start = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
local takes = epoch == ''
local owner = redis.call('HMGET', KEYS[2], 'member', 'epoch')
-- A lease that ran out and that nobody took is still its owner's; one that is there is the member's also when it did not hear of it.
local leased = redis.call('GET', KEYS[3])
if leased and leased ~= member then
  -- How long its leases last, a member's name says behind a colon. What has more than twice of that left was taken before the clock went back.
  local left, lasting = redis.call('PTTL', KEYS[3]), string.match(leased, ':(%d+)$') or lasts
  if left >= 0 and left <= 2 * tonumber(lasting) then return false end
end
if not takes and (owner[1] ~= member or owner[2] ~= epoch) then return false end

local function fields(list)
  local of = {}
  for i = 1, #list, 2 do of[list[i]] = list[i + 1] end
  return of
end
local is_there = true
local function find()
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
  if groups.err then
    -- The stream was deleted.
    is_there = not string.find(groups.err, 'no such key', 1, true)
    return is_there and groups or nil
  end
  for _, group in ipairs(groups) do
    local of = fields(group)
    if of['name'] == ARGV[4] then return of end
  end
end
local function split(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end

local lost, group = 0, find()
if group and group.err then return group end
-- Taken again, the unit gets a new stream or group.
if not group and not takes then return false end
if not group then
  -- Every group was made when its consumer subscribed. One that is not there was lost since, and with it how far the consumer had come.
  if not is_there then start = '0' end
  if start == '' then return { '', '0-0', false, 1, 0 } end
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[4], start, 'MKSTREAM')
  if made.err then return made end
  lost, group = 1, find()
end
local missing = 0
if lost == 0 and type(group['entries-read']) == 'number' then
  local stream = fields(redis.call('XINFO', 'STREAM', KEYS[1]))
  local first = stream['first-entry'] and stream['first-entry'][1]
  local ms, number = split(group['last-delivered-id'])
  local first_ms, first_number = split(first or '0-0')
  -- What is there comes behind what the group was given: then all the rest is gone.
  if not first or first_ms > ms or (first_ms == ms and first_number > number) then
    missing = math.max(0, stream['entries-added'] - group['entries-read'] - stream['length'])
  end
  if missing > 0 and start == '' then return takes and { '', '0-0', false, 0, missing } end
  if missing > 0 then
    -- Counted once: neither with the next heartbeat, nor by the next owner.
    local read = group['entries-read'] + missing
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[4], group['last-delivered-id'], 'ENTRIESREAD', read)
  end
end
if takes then
  epoch = tostring(redis.call('HINCRBY', KEYS[2], 'epoch', 1))
  redis.call('HSET', KEYS[2], 'member', member)
end
local pending = redis.call('XPENDING', KEYS[1], ARGV[4], '-', '+', 1, ARGV[5])[1]
redis.call('SET', KEYS[3], member, 'PX', lasts)
return { epoch, group['last-delivered-id'], pending and pending[1] or false, lost, missing }
