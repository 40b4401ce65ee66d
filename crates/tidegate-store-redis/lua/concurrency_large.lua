-- Concurrency where very many are served at once: leases in a sorted set, written in place. Twin of `concurrency.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua), [2] the names of leases
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  a sorted set: name (8 bytes) by its end in us. Leases without a name, left from when the limit was smaller and
--        counted refused requests, have a number after it.
-- Limit  limit, ttl_us, width (of the packed form, see concurrency.lua)
--
-- Not for limits that count refused requests.

-- Unpacks what the limit held while it was smaller.
local function leases_large_open(key, width)
  if call("TYPE", key).ok ~= "string" then
    return
  end
  local leases, count, latest, width = leases_open(key, call("GET", key), width)
  call("DEL", key)
  for index = 1, count do
    local name_at = (index - 1) * (8 + width) + 1
    local name = sub(leases, name_at, name_at + 7)
    if name == NAMELESS then
      name = name .. to_bytes("<I4", index)
    end
    call("ZADD", key, lease_end(leases, index, count, latest, width), name)
  end
end

-- Lets the set last as long as its last lease.
local function leases_large_last(key, now)
  local last = call("ZRANGE", key, -1, -1, "WITHSCORES")[2]
  if last and not time_is_given then
    call("EXPIREAT", key, expiry_beyond(tonumber(last), now))
  end
end

local function leases_large_tidy(key, now, ttl_us)
  call("ZREMRANGEBYSCORE", key, "-inf", now)
  local most = min(now + ttl_us, LATEST)
  for _, name in ipairs(call("ZRANGEBYSCORE", key, "(" .. string.format("%.0f", most), "+inf")) do
    call("ZADD", key, most, name)
  end
end

local function concurrency_large_look(key, now, hits, limit, ttl_us, width)
  leases_large_open(key, width)
  local count = call("ZCARD", key)
  local gone = call("ZCOUNT", key, "-inf", now)
  local live = count - gone
  local reset_after_us = 0
  if live > 0 then
    reset_after_us = min(tonumber(call("ZRANGE", key, -1, -1, "WITHSCORES")[2]) - now, ttl_us)
  end
  local remaining = limit - live
  if remaining > 0 then
    if hits == 0 then
      return 0, remaining, reset_after_us
    end
    return 0, remaining - 1, ttl_us
  end
  local first_out = tonumber(call("ZRANGE", key, gone + live - limit, gone + live - limit, "WITHSCORES")[2])
  return -2 - min(first_out - now, ttl_us), 0, reset_after_us
end

local function concurrency_large_acquire(key, now, hits, name, limit, ttl_us, width)
  leases_large_open(key, width)
  leases_large_tidy(key, now, ttl_us)
  local held = call("ZSCORE", key, name)
  if held then
    call("ZREM", key, name)
  end
  local wait, remaining, reset_after_us = concurrency_large_look(key, now, hits, limit, ttl_us, width)
  if wait >= 0 and hits > 0 then
    call("ZADD", key, min(now + ttl_us, LATEST), name)
    leases_large_last(key, now)
  elseif held then
    call("ZADD", key, held, name)
    leases_large_last(key, now)
  end
  return wait, remaining, reset_after_us
end

local function concurrency_large_renew(key, now, name, limit, ttl_us, width)
  leases_large_open(key, width)
  leases_large_tidy(key, now, ttl_us)
  local held = call("ZSCORE", key, name)
  if held then
    call("ZADD", key, min(now + ttl_us, LATEST), name)
    leases_large_last(key, now)
  end
  return held
end

local function concurrency_large_release(key, now, name, limit, ttl_us, width)
  leases_large_open(key, width)
  leases_large_tidy(key, now, ttl_us)
  return call("ZREM", key, name) == 1
end
