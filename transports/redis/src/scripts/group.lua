#!lua flags=allow-oom
-- Makes the group of a consumer on one stream, and the stream, where they are not there yet. Also without memory: only consumers make room.
--
-- KEYS: the stream. ARGV: the group; behind which entry it begins.
--
-- Answers 1 when it was made.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if not made.err then return 1 end
if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
return made
