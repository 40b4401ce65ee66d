-- Writes a record unless there is one, or replaces one that is still what the caller thinks.
--
-- KEYS[1]  a string: the record
-- ARGV     to write:    what it says, for how long (ms)
--          to replace:  what it says, for how long (ms), what it must say so far
--          to remove:   "", "0", what it must say so far
-- Reply    to write: what the record said already, or nothing; else 1 if it was replaced, 0 if not
local known = redis.call("GET", KEYS[1])
if ARGV[3] == nil then
  if known then
    return known
  end
  redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
  return false
end
if known ~= ARGV[3] then
  return 0
end
if ARGV[2] == "0" then
  redis.call("DEL", KEYS[1])
else
  redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
end
return 1
