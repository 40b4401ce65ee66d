-- Records on a shard the list of shards that this node uses, and returns the lists of other nodes.
--
-- KEYS[1]  a hash: lists of shards, and when each was last recorded (us)
-- ARGV     the list, for how long one counts (us), now_us (negative: ask Redis)
-- Reply    the other lists that count
local now = tonumber(ARGV[3])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
redis.call("HSET", KEYS[1], ARGV[1], string.format("%.0f", now))
redis.call("PEXPIRE", KEYS[1], math.ceil(ARGV[2] / 1000))
local others = {}
local all = redis.call("HGETALL", KEYS[1])
for at = 1, #all, 2 do
  local ago = now - (tonumber(all[at + 1]) or 0)
  if ago < 0 then
    -- Told by a clock that was ahead and came back: it counts as told now.
    redis.call("HSET", KEYS[1], all[at], string.format("%.0f", now))
    ago = 0
  end
  if ago > tonumber(ARGV[2]) then
    redis.call("HDEL", KEYS[1], all[at])
  elseif all[at] ~= ARGV[1] then
    others[#others + 1] = all[at]
  end
end
return others
