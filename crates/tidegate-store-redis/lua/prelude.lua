-- What every script begins with: exact arithmetic, the time, and how a value is kept.
--
-- Lua has no integers: `a / b` and `a % b` of large numbers are wrong in the last place. `math.fmod` is exact, and so is
-- every sum and product up to 2^53, which is as far as the limits in use reach.
--
-- A script is this file, the files of the algorithms it is sent for, and a driver (decide, change or cancel), joined.
-- Every function of an algorithm takes the value that its key holds, or false, and says what it becomes:
--   after      the value to keep; "" to forget the key; nil to leave it as it is
--   expires_s  when the key shall expire, in seconds since the epoch; nil to leave that as it is
-- and answers a decision with three numbers:
--   wait       admitted: the delay in us, 0 or more; refused: -1 if for ever, else -2 - retry_after_us
--   remaining  hits left
--   reset_after_us
--
-- KEYS     as the driver says; of those, the first `readable` hold strings
-- ARGV[1]  the plan, little-endian: now_us (8-byte float; negative: ask Redis), valid_from_us and valid_until_us (the
--          time for which the plan's calendar windows hold, and in which it may begin), readable (2 bytes), items (2 bytes), letter_at (2 bytes: where
--          in a key its letter stands; 0 where nobody ever holds some of a cell for now, see holds.lua), then the items
-- ARGV[2]  the names of leases, 8 bytes each
-- Reply    to a plan that does not hold now: "T", then now_us as an 8-byte float; nothing was done

local fmod, min, max = math.fmod, math.min, math.max
local from_bytes, to_bytes, sub = struct.unpack, struct.pack, string.sub
local call = redis.call

-- The last moment that can be counted, in microseconds since the epoch.
local LATEST = 9007199254740991
-- An expiry that is later than needed by more than this was written by a clock that has since stepped back, or for hits that
-- went back: it is set anew.
local TOO_LATE_US = 3600000000
-- Where a test gives the time, keys last for an hour of Redis's own.
local TEST_TTL_MS = 3600000

-- For reservations: what each log was before hits were entered, by its key. Nil where nothing has to be put back.
local log_traces

local function floor_div(a, b)
  return (a - fmod(a, b)) / b
end

local function ceil_div(a, b)
  local rest = fmod(a, b)
  if rest == 0 then
    return a / b
  end
  return (a - rest) / b + 1
end

-- When a key shall expire that is needed until `moment_us`, a moment that every hit moves. Moving an expiry costs more
-- than writing a value, so it goes ahead by as long again, at least 5 s and at most 60 s, and then stays for a while.
local function expiry_beyond(moment_us, now)
  return ceil_div(moment_us + min(max(moment_us - now, 5000000), 60000000), 1000000)
end

-- When a key expires whose window, shared by many callers, ends at `stop_us`. Redis deletes expired keys in steps that block
-- it: at its default `hz`, for up to 25 ms while more than a tenth of its keys are expired. So the expiries are spread over
-- as long as the window, at most a minute; over a tenth of windows longer than ten minutes, at most an hour.
local function expiry_after(stop_us, window_us, now)
  local spread_us = min(window_us, max(min(window_us / 10, 3600000000), 60000000))
  return ceil_div(stop_us, 1000000) + 1 + floor_div(fmod(now, 1000) * spread_us, 1000000000)
end

local plan = ARGV[1]
local now, valid_from, valid_until, readable, items, letter_at, at = from_bytes("<dddI2I2I2", plan)
local time_is_given = now >= 0
if not time_is_given then
  local time = call("TIME")
  now = time[1] * 1000000 + time[2]
end
if now < valid_from or now >= valid_until then
  return "T" .. to_bytes("<d", now)
end

local function keep(key, value, expires_s)
  if not value then
    call("DEL", key)
  elseif not expires_s then
    call("SET", key, value, "KEEPTTL")
  elseif time_is_given then
    call("SET", key, value, "PX", TEST_TTL_MS)
  else
    -- The part of a second that `now` shows spreads what would expire at the same moment.
    call("SET", key, value, "PXAT", expires_s * 1000 + floor_div(fmod(now, 1000000), 1000))
  end
end
