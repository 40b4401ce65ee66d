-- Adds to what is published, without the whole of it.
--
-- KEYS[1]  the hash that publish.lua fills
-- ARGV     lineage, revision, the changes that are there, the changes that take their place, for how long it is kept (ms),
--          mark, format, serial, seal
-- Reply    1, or 0 where others are there, or what is there is later in the order
local found = redis.call("HMGET", KEYS[1], "lineage", "changes", "serial")
if found[1] ~= ARGV[1] or found[2] ~= ARGV[3] then
  return 0
end
if ARGV[8] ~= "0" and tonumber(ARGV[8]) <= (tonumber(found[3] or "0") or 0) then
  return 0
end
redis.call("HSET", KEYS[1], "revision", ARGV[2], "changes", ARGV[4], "mark", ARGV[6], "format", ARGV[7],
  "serial", ARGV[8], "seal", ARGV[9])
redis.call("PEXPIRE", KEYS[1], ARGV[5])
return 1
