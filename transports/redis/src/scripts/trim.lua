-- Removes from a stream what every group has finished, and what is beyond a length, if there is one.
--
-- KEYS: the stream.
-- ARGV: 1 when what all groups have finished goes; for how long entries stay all the same, in milliseconds; the most entries, or ''.
--
-- Answers how many entries went.
local function split(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end
local function before(one, other)
  local ms, number = split(one)
  local other_ms, other_number = split(other)
  return ms < other_ms or (ms == other_ms and number < other_number)
end

local gone = 0
if ARGV[1] == '1' then
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
  -- A stream without a group: whoever comes first shall find what is there.
  if not groups.err and #groups > 0 then
    local time = redis.call('TIME')
    local keep = math.max(0, tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(ARGV[2]))
    local floor = string.format('%.0f-0', keep)
    for _, group in ipairs(groups) do
      local of = {}
      for i = 1, #group, 2 do of[group[i]] = group[i + 1] end
      local first = of['last-delivered-id']
      if of['pending'] > 0 then first = redis.call('XPENDING', KEYS[1], of['name'])[2] end
      if before(first, floor) then floor = first end
    end
    gone = redis.call('XTRIM', KEYS[1], 'MINID', '~', floor, 'LIMIT', 0)
  end
end
if ARGV[3] ~= '' then gone = gone + redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[3], 'LIMIT', 0) end
return gone
