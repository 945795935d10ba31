#!lua flags=no-writes,allow-stale
-- Tells what waits in one stream for a group.
--
-- KEYS: the stream. ARGV: the group.
--
-- Answers how many entries it was given and did not acknowledge, how many it was not given yet, and how old the first of them is, in milliseconds;
-- or nothing, when there is no such group.
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return false end
for _, group in ipairs(groups) do
  local of = {}
  for i = 1, #group, 2 do of[group[i]] = group[i + 1] end
  if of['name'] == ARGV[1] then
    local last, lag, oldest = of['last-delivered-id'], of['lag'], nil
    local next = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1)[1]
    if not next then
      -- What is counted beyond that was removed.
      lag = 0
    elseif type(lag) ~= 'number' then
      lag = redis.call('XLEN', KEYS[1])
    end
    if next then oldest = next[1] end
    if of['pending'] > 0 then oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2] end
    local age = -1
    if oldest then
      local time = redis.call('TIME')
      local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
      age = math.max(0, now - tonumber(string.match(oldest, '^(%d+)')))
    end
    return { of['pending'], lag, age }
  end
end
return false
