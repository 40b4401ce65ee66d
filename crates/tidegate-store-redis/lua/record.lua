-- Writes a record unless there is one, or replaces one that is still what the caller thinks.
--
-- KEYS[1]  a string: the record
-- ARGV     to write:    what it says, for how long (ms)
--          to replace:  what it says, for how long (ms), what it must say so far
--          to remove:   "", "0", what it must say so far
-- Reply    to write: what the record said already, or nothing; else 1 if it was replaced, 0 if not
-- The lifetimes that are asked for one record differ by less than this.
local QUARTER_MS = 90 * 24 * 3600 * 1000
local known = redis.call("GET", KEYS[1])
if ARGV[3] == nil then
  if known then
    -- A user without the right to ask for it goes without.
    local left = redis.pcall("PTTL", KEYS[1])
    if type(left) == "number" and left > tonumber(ARGV[2]) + QUARTER_MS then
      -- Written by a clock that was ahead and came back: a lease whose holder is dead would be held until it gets there again.
      redis.call("PEXPIRE", KEYS[1], ARGV[2])
    end
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
