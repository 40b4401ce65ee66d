-- Says that a limiter is alive, counts those that are, and tells which rules are published.
--
-- KEYS[1]  a sorted set: limiters by when they count as gone, in us
-- KEYS[2]  a hash: what each limiter tells of itself, after when it did and for how long that counts, in us
-- KEYS[3]  a hash: what is published (see publish.lua)
-- ARGV     the limiter's name (8 bytes), for how long from now it counts as alive (us), now_us (negative: ask Redis),
--          what it tells of itself (empty: nothing)
-- Reply    how many are alive, the revision that is published (0: none is), the database that it is from
local now = tonumber(ARGV[3])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
local ttl_us = tonumber(ARGV[2])
local ttl_ms = math.ceil(ttl_us / 1000) + 1000
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZADD", KEYS[1], now + ttl_us, ARGV[1])
redis.call("PEXPIRE", KEYS[1], ttl_ms)
-- A user without rights to hashes still counts as alive: limits need no more.
if ARGV[4] ~= "" then
  redis.pcall("HSET", KEYS[2], ARGV[1], string.format("%.0f %.0f ", now, ttl_us) .. ARGV[4])
  redis.call("PEXPIRE", KEYS[2], ttl_ms)
end
local published = redis.pcall("HMGET", KEYS[3], "revision", "lineage")
return { redis.call("ZCARD", KEYS[1]), tonumber(published[1] or "0"), published[2] or "" }
