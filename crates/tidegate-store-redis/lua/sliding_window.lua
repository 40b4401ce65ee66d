-- Sliding window counter: the previous window's count fades out as the current one goes by. Twin of `sliding_window.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua)
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  start_us (7 bytes), current (4), previous (4). The key expires soon after the next window's end. A longer value is a
--        log, which a limit left that was a sliding log (crossing.rs).
-- Limit  limit, window_us, tick_us, ticks (per window, rounded up), most (the count up to which the arithmetic is exact)

local U32_MAX = 4294967295
-- The bytes of a value.
local WINDOW_BYTES = 15
-- The largest product that is surely exact when another is added to it.
local HALF_EXACT = 4503599627370496

-- A log's hits in the window that begins at `start`: how many count as of now, and what has to have been in the window before
-- for its weight to be that of the others.
local function sliding_window_of_log(raw, now, start, weight, window_us, ticks, most)
  local width = window_us <= 256 ^ 4 and 4 or window_us <= 256 ^ 5 and 5 or window_us <= 256 ^ 6 and 6 or 7
  local form, range = "<I" .. width, width < 7 and 256 ^ width or HALF_EXACT
  local newest, _, head = from_bytes("<I7I5I4", raw)
  local last_low = from_bytes(form, raw, #raw - width + 1)
  local count = (#raw - 16) / width - head
  newest = min(newest, now)
  local function count_until(moment)
    local low, high = 0, count
    while low < high do
      local middle = floor_div(low + high, 2)
      local gap = last_low - from_bytes(form, raw, 17 + (head + middle) * width)
      if newest - (gap < 0 and gap + range or gap) <= moment then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end
  local until_start = count_until(start)
  local older = min(until_start - (now < window_us and 0 or count_until(now - window_us)), most)
  local previous = min(floor_div(older * ticks, weight), U32_MAX)
  return min(count - until_start + older - ceil_div(previous * weight, ticks), most), previous
end

-- Start, current and previous count as of `now`, the ticks of the previous window that have not faded, and the start of
-- the window that was.
local function sliding_window_read(raw, now, window_us, tick_us, ticks, most)
  local start = now - fmod(now, window_us)
  -- A tick that has begun has not faded: the weight rounds up.
  local weight = ticks - floor_div(now - start, tick_us)
  if not raw then
    return start, 0, 0, weight
  end
  if #raw > WINDOW_BYTES then
    -- From another window than this one, so that it is written in any case.
    local current, previous = sliding_window_of_log(raw, now, start, weight, window_us, ticks, most)
    return start, current, previous, weight, LATEST
  end
  local its_start, current, previous = from_bytes("<I7I4I4", raw)
  -- A value from a later window is one that a clock, since stepped back, wrote: its hits count here.
  if its_start < start then
    previous = min(its_start + window_us, LATEST) == start and current or 0
    current = 0
  end
  if previous > most then
    previous = min(previous, floor_div(HALF_EXACT, weight))
  end
  return start, min(current, most), previous, weight, its_start
end

local function sliding_window_write(now, start, window_us, current, previous, its_start)
  if current == 0 and previous == 0 then
    return ""
  end
  local after = to_bytes("<I7I4I4", start, min(current, U32_MAX), min(previous, U32_MAX))
  if its_start == start then
    return after
  end
  return after, expiry_after(start + 2 * window_us, window_us, now)
end

-- What becomes of a value that nothing is spent from. One from a later window counts in this one, and is written so: left as
-- it is, it would count in every window until the clock had caught up.
local function sliding_window_rest(now, start, window_us, current, previous, its_start)
  if its_start and its_start > start then
    return sliding_window_write(now, start, window_us, current, previous, its_start)
  end
end

-- How far into a window `previous` hits weigh at most `room`; nil if not before its end.
local function faded_enough(previous, room, tick_us, ticks)
  if previous <= room then
    return 0
  end
  local heaviest = floor_div(room * ticks, previous)
  if heaviest > 0 then
    return (ticks - heaviest) * tick_us
  end
end

-- The first moment at which `wanted` hits fit, if nobody else asks.
local function sliding_window_retry_at(start, current, previous, wanted, limit, window_us, tick_us, ticks)
  local room = limit - current - wanted
  local offset = room >= 0 and faded_enough(previous, room, tick_us, ticks)
  if offset then
    return start + offset
  end
  return start + window_us + (faded_enough(current, limit - wanted, tick_us, ticks) or window_us)
end

local function sliding_window_reset_after(now, start, window_us, current, previous)
  if current > 0 then
    return max(min(start + 2 * window_us, LATEST) - now, 0)
  elseif previous > 0 then
    return max(min(start + window_us, LATEST) - now, 0)
  end
  return 0
end

local function sliding_window_decide(raw, now, hits, limit, window_us, tick_us, ticks, most)
  local start, current, previous, weight, its_start = sliding_window_read(raw, now, window_us, tick_us, ticks, most)
  local remaining = floor_div(max(limit * ticks - (previous * weight + current * ticks), 0), ticks)
  local wanted = max(hits, 1)
  if wanted > remaining then
    local wait = -1
    if wanted <= limit then
      local retry_at = sliding_window_retry_at(start, current, previous, wanted, limit, window_us, tick_us, ticks)
      wait = -2 - max(min(retry_at, LATEST) - now, 0)
    end
    return wait, remaining, sliding_window_reset_after(now, start, window_us, current, previous),
      sliding_window_rest(now, start, window_us, current, previous, its_start)
  elseif hits == 0 then
    return 0, remaining, sliding_window_reset_after(now, start, window_us, current, previous),
      sliding_window_rest(now, start, window_us, current, previous, its_start)
  end
  current = current + wanted
  return 0, remaining - wanted, sliding_window_reset_after(now, start, window_us, current, previous),
    sliding_window_write(now, start, window_us, current, previous, its_start)
end

local function sliding_window_refund(raw, now, hits, age_us, limit, window_us, tick_us, ticks, most)
  local start, current, previous, _, its_start = sliding_window_read(raw, now, window_us, tick_us, ticks, most)
  local charged = max(now - age_us, 0)
  local charged_start = charged - fmod(charged, window_us)
  if charged_start == start then
    local returned = min(hits, current)
    current = current - returned
    previous = max(previous - (hits - returned), 0)
  elseif charged_start + window_us == start then
    previous = max(previous - hits, 0)
  end
  return sliding_window_write(now, start, window_us, current, previous, its_start)
end

local function sliding_window_charge(raw, now, hits, age_us, overdraft, limit, window_us, tick_us, ticks, most)
  local start, current, previous, _, its_start = sliding_window_read(raw, now, window_us, tick_us, ticks, most)
  local spent = max(now - age_us, 0)
  local spent_in = spent - fmod(spent, window_us)
  if spent_in == start then
    current = current + min(hits, max(min(limit + overdraft, LATEST) - current, 0))
  elseif spent_in + window_us == start then
    previous = previous + min(hits, max(min(limit + overdraft, LATEST) - previous, 0))
  end
  return sliding_window_write(now, start, window_us, current, previous, its_start)
end
