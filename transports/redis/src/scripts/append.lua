-- Appends the messages of one batch to one stream, all or a prefix of them, unless a newer owner of their bucket has been here. Nothing raises
-- behind the first write: a script that raises has no answer that says what it did.
--
-- KEYS: the stream; the epochs seen of this source and route: of each bucket the newest one, and when it was heard of last.
-- ARGV: how long an epoch counts that is not heard of, in milliseconds; the number of buckets; for each its number and epoch, which is empty
-- where it is not known; then for each message its bucket, the number of strings that follow, and those: field, value, field, value.
--
-- Answers how many messages it went through, the error that stopped it or '', the version of the epochs before and behind, or '' where there is
-- none, and the buckets that were refused. The version changes with every epoch.
local keep, buckets = ARGV[1], tonumber(ARGV[2])
local at = 3
local names, epochs = {}, {}
for i = 1, buckets do
  names[i], epochs[i] = ARGV[at], ARGV[at + 1]
  at = at + 2
end

local refused, fenced, heard = {}, {}, {}
local before, after = '', ''
if buckets > 0 then
  local seen = redis.pcall('HMGET', KEYS[2], 'version', unpack(names))
  if seen.err then return { 0, seen.err, '', '' } end
  before = table.remove(seen, 1) or ''
  local changed = before == ''
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  for i = 1, buckets do
    local epoch = tonumber(epochs[i])
    if epoch then
      local known, of = string.match(seen[i] or '', '^(%d+):(%d+)$')
      -- In either direction: the clock may have gone back.
      if known and epoch < tonumber(known) and math.abs(now - tonumber(of)) < tonumber(keep) then
        fenced[names[i]] = true
        refused[#refused + 1] = names[i]
      else
        changed = changed or epoch ~= tonumber(known)
        heard[#heard + 1] = names[i]
        heard[#heard + 1] = string.format('%s:%.0f', epochs[i], now)
      end
    end
  end
  after = before
  if changed and #heard > 0 then
    after = time[1] .. '.' .. time[2]
    if after == before then after = after .. '+' end
    heard[#heard + 1] = 'version'
    heard[#heard + 1] = after
  end
end

-- Before anything is appended: what is refused behind that would be taken for a message that is not there. And this first: Redis asks only
-- once in a script whether there is memory, at the first write, and not for an expiry.
if #heard > 0 then
  local kept = redis.pcall('HSET', KEYS[2], unpack(heard))
  if type(kept) == 'table' then return { 0, kept.err, '', '' } end
  kept = redis.pcall('PEXPIRE', KEYS[2], keep)
  if type(kept) == 'table' then return { 0, kept.err, '', '' } end
end

local through, failed = 0, ''
while at <= #ARGV do
  local bucket, strings = ARGV[at], tonumber(ARGV[at + 1])
  if not fenced[bucket] then
    local id = redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, at + 2, at + 1 + strings))
    if type(id) == 'table' then
      failed = id.err
      break
    end
  end
  at = at + 2 + strings
  through = through + 1
end

return { through, failed, before, after, unpack(refused) }
