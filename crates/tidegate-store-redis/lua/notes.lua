-- What every limiter that is alive tells of itself. Forgets those that are gone.
--
-- KEYS[1]  a hash: what each limiter tells (see heartbeat.lua)
-- ARGV     now_us (negative: ask Redis)
-- Reply    for each: its name, how long ago it told (us), what it told
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
local alive = {}
local all = redis.call("HGETALL", KEYS[1])
for at = 1, #all, 2 do
  local seen, ttl, note = string.match(all[at + 1], "^(%d+) (%d+) (.*)$")
  local ago = now - tonumber(seen or 0)
  if not seen or ago > tonumber(ttl) then
    redis.call("HDEL", KEYS[1], all[at])
  else
    alive[#alive + 1] = { all[at], math.max(ago, 0), note }
  end
end
return alive
