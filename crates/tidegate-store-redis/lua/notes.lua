-- Returns the note of every live limiter, and the last note of those that stopped without signing off. Deletes notes that are
-- too old.
--
-- KEYS[1]  a hash: the note of each limiter (see heartbeat.lua)
-- ARGV     now_us (negative: ask Redis), how long the note of a limiter that stopped is kept (us)
-- Reply    for each: its name, the age of its note (us), the note, whether it counts as gone (1 or 0)
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
local known = {}
local all = redis.call("HGETALL", KEYS[1])
for at = 1, #all, 2 do
  local seen, ttl, note = string.match(all[at + 1], "^(%d+) (%d+) (.*)$")
  local ago = now - tonumber(seen or 0)
  if seen and ago < 0 then
    -- Told by a clock that was ahead and came back: it counts as told now.
    redis.call("HSET", KEYS[1], all[at], string.format("%.0f ", now) .. ttl .. " " .. note)
    ago = 0
  end
  if not seen or ago > tonumber(ttl) + tonumber(ARGV[2]) then
    redis.call("HDEL", KEYS[1], all[at])
  else
    known[#known + 1] = { all[at], ago, note, ago > tonumber(ttl) and 1 or 0 }
  end
end
return known
