-- Says that a limiter is alive, and counts those that are.
--
-- KEYS[1]  a sorted set: limiters by when they count as gone, in us
-- ARGV     the limiter's name (8 bytes), for how long from now it counts as alive (us), now_us (negative: ask Redis)
-- Reply    how many are alive
local now = tonumber(ARGV[3])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
local ttl_us = tonumber(ARGV[2])
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZADD", KEYS[1], now + ttl_us, ARGV[1])
redis.call("PEXPIRE", KEYS[1], math.ceil(ttl_us / 1000) + 1000)
return redis.call("ZCARD", KEYS[1])
