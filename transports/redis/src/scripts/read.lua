-- Reads entries of one unit for a member, if the unit is still that member's. For clusters, where one transaction can't hold more slots than one, and
-- for servers without memory, which queue nothing for a transaction.
--
-- KEYS: the stream; the unit's owner.
-- ARGV: the member; the epoch under which it has the unit; the group; under which name is read; how many entries at most; behind which entry.
--
-- Answers as XREADGROUP does; 0 when the unit is another's.
local owner = redis.call('HMGET', KEYS[2], 'member', 'epoch')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then return 0 end
return redis.pcall('XREADGROUP', 'GROUP', ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'STREAMS', KEYS[1], ARGV[6])
