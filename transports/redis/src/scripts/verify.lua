#!lua flags=allow-oom
-- Lets the transaction that follows come to nothing, unless the epochs of a stream are those of a version. It watches them, so a change of
-- this script counts like that of another client: a new time, or an empty version where nothing is left.
--
-- KEYS: the epochs. ARGV: the version; for how long they are kept, in milliseconds.
if redis.call('HGET', KEYS[1], 'version') == ARGV[1] then return 1 end
if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 0 then
  redis.call('HSET', KEYS[1], 'version', '')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
