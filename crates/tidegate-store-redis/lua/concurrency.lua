-- Concurrency: how many requests are being served at once, as leases that end by themselves. Twin of `concurrency.rs`.
--
-- KEYS   one per cell, and where refused requests count a second one, whose number is `refused`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua), [2] the names of leases
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  a sorted set, written in place: first when the key expires (5 bytes, seconds) by the longest time to live under
--        which any lease was taken, negative; then each lease's name (8 bytes) by its end in us. The second key is a log
--        (sliding_log.lua) of refused requests.
-- Limit  limit, ttl_us, refused (the number of the second key, or 0)

-- The name of a lease that the plan gives by its number.
local function lease_name(number)
  return sub(ARGV[2], 8 * number - 7, 8 * number)
end

-- How long until the `index`th lease ends, from 0. One that outlives the longest time to live was written by a clock that
-- has since stepped back.
local function lease_ends_in(key, index, now, longest_us)
  return min(tonumber(call("ZRANGE", key, index + 1, index + 1, "WITHSCORES")[2]) - now, longest_us)
end

-- The `n`th smallest end, from 0, of the leases after the first `ended` and of the live refused requests.
local function nth_end(n, key, ended, held, now, longest_us, log)
  if not log then
    return lease_ends_in(key, ended + n, now, longest_us)
  end
  local low, most = max(n - log.live, 0), min(n, held)
  local high, probe = most, most - 1
  while low < high do
    if lease_ends_in(key, ended + probe, now, longest_us) < log_leaves_in(log, n - probe) then
      low = probe + 1
    else
      high = probe
    end
    -- Most leases are older than what was refused since: strides from the last on find them sooner than halving does.
    probe = max(2 * high - most - 1, floor_div(low + high, 2))
  end
  local first = low < held and lease_ends_in(key, ended + low, now, longest_us) or LATEST
  return n - low < log.live and min(first, log_leaves_in(log, n - low + 1)) or first
end

-- The log of refused requests once `noted` more have been noted; nil where those do not count.
local function refused_log(now, noted, limit, ttl_us, refused)
  return refused > 0 and log_read(KEYS[refused], nil, now, noted, max(limit, 1), ttl_us, 7, 1) or nil
end

-- What a request is told beside the refused ones in `log` and `count` leases, of which `ended` have ended and the last
-- ends at `last`.
local function concurrency_told(key, now, hits, limit, ttl_us, log, count, ended, longest_us, last)
  local held = count - ended
  local live, reset_after_us = held, 0
  if held > 0 then
    reset_after_us = min(last - now, longest_us)
  end
  if log then
    live = held + log.live
    if log.live > 0 then
      reset_after_us = max(reset_after_us, log_leaves_in(log, log.live))
    end
  end
  local remaining = limit - live
  if remaining > 0 then
    if hits == 0 then
      return 0, remaining, reset_after_us
    end
    return 0, remaining - 1, max(reset_after_us, ttl_us)
  elseif limit == 0 then
    return -1, 0, reset_after_us
  end
  return -2 - nth_end(live - limit, key, ended, held, now, longest_us, log), 0, reset_after_us
end

local function last_end(key)
  return tonumber(call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
end

-- What a request is told once `noted` more refused ones have been noted. Changes nothing.
local function concurrency_look(key, now, hits, noted, limit, ttl_us, refused)
  local log = refused_log(now, noted, limit, ttl_us, refused)
  local first = call("ZRANGE", key, 0, 1, "WITHSCORES")
  if not first[4] then
    return concurrency_told(key, now, hits, limit, ttl_us, log, 0, 0, 0, 0)
  end
  local count, ended, longest_us = call("ZCARD", key) - 1, 0, -tonumber(first[2])
  if tonumber(first[4]) <= now then
    ended = call("ZCOUNT", key, 0, now)
  end
  return concurrency_told(key, now, hits, limit, ttl_us, log, count, ended, longest_us, last_end(key))
end

-- Enters a lease that ends after `ttl_us`, beside others taken for at most `longest_us`, in a set that begins with `first`.
-- The key outlasts all of them.
local function lease_grant(key, name, now, ttl_us, longest_us, first)
  local most_us = max(longest_us, ttl_us)
  local beyond_us = (first and from_bytes("<I5", first) or 0) * 1000000 - now - most_us
  if beyond_us < 0 or beyond_us > TOO_LATE_US then
    local expires_s = expiry_beyond(now + most_us, now)
    if first then
      call("ZREM", key, first)
    end
    call("ZADD", key, -most_us, to_bytes("<I5", expires_s), min(now + ttl_us, LATEST), name)
    if time_is_given then
      call("PEXPIRE", key, TEST_TTL_MS)
    else
      call("EXPIREAT", key, expires_s)
    end
  elseif most_us > longest_us then
    call("ZADD", key, -most_us, first, min(now + ttl_us, LATEST), name)
  else
    call("ZADD", key, min(now + ttl_us, LATEST), name)
  end
end

-- Drops what has ended, and shortens what outlives the longest time to live: how many leases are left, that time, what the
-- set begins with, and when the last lease ends. Refused requests from the future are ones of now.
local function leases_tidy(key, now, refused)
  if refused > 0 then
    sliding_log_rebase(KEYS[refused], nil, now, 7, 1)
  end
  local first = call("ZRANGE", key, 0, 1, "WITHSCORES")
  if not first[4] then
    return 0, 0, first[1], 0
  elseif tonumber(first[4]) <= now then
    call("ZREMRANGEBYSCORE", key, 0, now)
  end
  local count, longest_us = call("ZCARD", key) - 1, -tonumber(first[2])
  local last, most = last_end(key), min(now + longest_us, LATEST)
  if count > 0 and last > most then
    for _, name in ipairs(call("ZRANGEBYSCORE", key, string.format("(%.0f", most), "+inf")) do
      call("ZADD", key, most, name)
    end
    last = most
  end
  return count, longest_us, first[1], last
end

-- Takes a lease if there is room; taking it again renews it. Without a name it takes none.
local function concurrency_decide(key, now, hits, name, limit, ttl_us, refused)
  local count, longest_us, first, last = leases_tidy(key, now, refused)
  local held = name and count > 0 and call("ZSCORE", key, name)
  local others = held and count - 1 or count
  if name and hits > 0 and refused == 0 and others < limit and longest_us <= ttl_us then
    -- None of the others ends later than this one, so none of them matters.
    lease_grant(key, name, now, ttl_us, longest_us, first)
    return 0, limit - others - 1, ttl_us
  end
  local log = refused_log(now, 0, limit, ttl_us, refused)
  if log and hits > 0 and others + log.live >= limit then
    -- It will be noted, and is told how long to wait once it is.
    return -2, 0, 0
  end
  if held then
    call("ZREM", key, name)
    last = others > 0 and last_end(key) or 0
  end
  local wait, remaining, reset_after_us =
    concurrency_told(key, now, hits, limit, ttl_us, log, others, 0, longest_us, last)
  if name and wait >= 0 and hits > 0 then
    lease_grant(key, name, now, ttl_us, others > 0 and longest_us or 0, first)
  elseif held then
    call("ZADD", key, held, name)
  end
  return wait, remaining, reset_after_us
end

-- Forgets a lease: when it would have ended, if it has not.
local function lease_take(key, name, now)
  local ends = tonumber(call("ZSCORE", key, name) or 0)
  if ends > 0 then
    call("ZREM", key, name)
  end
  return ends > now and ends
end

local function concurrency_renew(key, now, name, ttl_us)
  local held = lease_take(key, name, now)
  if held then
    local first = call("ZRANGE", key, 0, 1, "WITHSCORES")
    lease_grant(key, name, now, ttl_us, first[4] and -tonumber(first[2]) or 0, first[1])
  end
  return held
end

local function concurrency_release(key, now, name)
  local held = lease_take(key, name, now)
  if call("ZCARD", key) == 1 then
    call("DEL", key)
  end
  return held
end

-- Notes `count` refused requests. The newest `limit` of those are all that need remembering.
local function concurrency_note_refused(now, count, limit, ttl_us, refused)
  return sliding_log_enter(KEYS[refused], nil, now, count, max(limit, 1), ttl_us, 0, 7, 1)
end
