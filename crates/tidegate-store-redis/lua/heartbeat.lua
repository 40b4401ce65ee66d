-- Says that a limiter is alive, counts those that are, and tells which rules are published and what nodes are asked.
--
-- KEYS[1]  a sorted set: limiters by when they count as gone, in us
-- KEYS[2]  a hash: what each limiter tells of itself, after when it did and for how long that counts, in us
-- KEYS[3]  a hash: what is published (see publish.lua)
-- KEYS[4]  a hash: what the fleet counted in each second of this minute: rows of sixty slots, each of some 4-byte numbers
-- KEYS[5]  the same, in each minute of this hour
-- KEYS[6]  a hash: questions to all nodes (see ask.lua)
-- ARGV     the limiter's name (8 bytes), for how long from now it counts as alive (us), now_us (negative: ask Redis),
--          what it tells of itself (empty: nothing), the slots of now in both, for how long those are kept (ms),
--          and of each row that this limiter has counts to add for: its name, the counts
-- Reply    how many are alive, the questions (their names and texts in turns), and of what is published (all empty: nothing is)
--          the revision, the database, what tells the revision from another of the same number, its place in the order of
--          publications, and the signature of those four
local now = tonumber(ARGV[3])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
local ttl_us = tonumber(ARGV[2])
local ttl_ms = math.ceil(ttl_us / 1000) + 1000
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZADD", KEYS[1], now + ttl_us, ARGV[1])
-- Entries from a clock that was ahead and came back count as made now: otherwise a dead limiter would count until the clock
-- gets there again.
for _, member in ipairs(redis.call("ZRANGEBYSCORE", KEYS[1], string.format("(%.0f", now + ttl_us), "+inf")) do
  redis.call("ZADD", KEYS[1], now + ttl_us, member)
end
redis.call("PEXPIRE", KEYS[1], ttl_ms)
-- A user without rights to hashes still counts as alive: limits need no more.
if ARGV[4] ~= "" then
  redis.pcall("HSET", KEYS[2], ARGV[1], string.format("%.0f %.0f ", now, ttl_us) .. ARGV[4])
  redis.call("PEXPIRE", KEYS[2], ttl_ms)
end
local function add(key, slot, row, more)
  local width = #more
  local counts = redis.pcall("HGET", key, row)
  if type(counts) == "table" then
    return
  elseif not counts or #counts ~= 60 * width then
    counts = string.rep("\0", 60 * width)
  end
  local from, sums = slot * width, {}
  for at = 1, width, 4 do
    local sum = struct.unpack("<I4", counts, from + at) + struct.unpack("<I4", more, at)
    sums[#sums + 1] = struct.pack("<I4", math.min(sum, 4294967295))
  end
  redis.call("HSET", key, row, counts:sub(1, from) .. table.concat(sums) .. counts:sub(from + width + 1))
end
for at = 9, #ARGV, 2 do
  add(KEYS[4], tonumber(ARGV[5]), ARGV[at], ARGV[at + 1])
  add(KEYS[5], tonumber(ARGV[6]), ARGV[at], ARGV[at + 1])
end
if #ARGV > 8 then
  redis.call("PEXPIRE", KEYS[4], ARGV[7])
  redis.call("PEXPIRE", KEYS[5], ARGV[8])
end
local published = redis.pcall("HMGET", KEYS[3], "revision", "lineage", "mark", "serial", "seal")
local questions = redis.pcall("HGETALL", KEYS[6])
if questions.err then
  questions = {}
end
local reply = { redis.call("ZCARD", KEYS[1]), questions }
for at = 1, 5 do
  reply[#reply + 1] = published[at] or ""
end
return reply
