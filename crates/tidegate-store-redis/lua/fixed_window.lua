-- Fixed window: a count that starts anew at each boundary. Twin of `fixed_window.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua)
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  start_us (7 bytes), count (7). The key expires soon after its window's end.
-- Limit  limit, window_us, and for a calendar b1 < b2 < b3 < b4, four boundaries around the time of the plan, with
--        window_us 0, or -1 where b1 is the first that there is. Time before the first belongs to its window; after the
--        last, windows as long as the last one follow.

local function fixed_window_around(now, window_us, b1, b2, b3, b4)
  if window_us > 0 then
    local start = now - fmod(now, window_us)
    return start, min(start + window_us, LATEST)
  elseif now < b2 then
    return b1, b2
  elseif now < b3 then
    return b2, b3
  elseif now < b4 then
    return b3, b4
  end
  local start = now - fmod(now - b4, b4 - b3)
  return start, min(start + b4 - b3, LATEST)
end

-- What is counted in the window that began at `start`, and the window that was. A value from a later window is one that
-- a clock, since stepped back, wrote: its hits count here.
local function fixed_window_read(raw, start)
  if not raw then
    return 0
  end
  local its_start, count = from_bytes("<I7I7", raw)
  if its_start >= start then
    return count, its_start
  end
  return 0, its_start
end

local function fixed_window_write(now, start, stop, count, its_start)
  if count == 0 then
    return ""
  elseif its_start == start then
    return to_bytes("<I7I7", start, count)
  end
  return to_bytes("<I7I7", start, count), expiry_after(stop, stop - start, now)
end

-- What becomes of a value that nothing is spent from. One from a later window counts in this one, and is written so: left as
-- it is, it would count in every window until the clock had caught up.
local function fixed_window_rest(now, start, stop, count, its_start)
  if its_start and its_start > start then
    return fixed_window_write(now, start, stop, count, its_start)
  end
end

local function fixed_window_decide(raw, now, hits, limit, window_us, b1, b2, b3, b4)
  local start, stop = fixed_window_around(now, window_us, b1, b2, b3, b4)
  local count, its_start = fixed_window_read(raw, start)
  local reset_after_us, remaining, wanted = max(stop - now, 0), max(limit - count, 0), max(hits, 1)
  if wanted > remaining then
    return wanted <= limit and -2 - reset_after_us or -1, remaining, reset_after_us,
      fixed_window_rest(now, start, stop, count, its_start)
  elseif hits == 0 then
    return 0, remaining, reset_after_us, fixed_window_rest(now, start, stop, count, its_start)
  end
  return 0, remaining - wanted, reset_after_us, fixed_window_write(now, start, stop, count + wanted, its_start)
end

-- Whether hits of `age_us` ago were spent in the window that began at `start`.
local function fixed_window_is_of(now, age_us, start, window_us, b1)
  return max(now - age_us, 0) >= start or (window_us < 0 and start == b1)
end

local function fixed_window_refund(raw, now, hits, age_us, limit, window_us, b1, b2, b3, b4)
  local start, stop = fixed_window_around(now, window_us, b1, b2, b3, b4)
  local count, its_start = fixed_window_read(raw, start)
  hits = fixed_window_is_of(now, age_us, start, window_us, b1) and hits or 0
  return fixed_window_write(now, start, stop, max(count - hits, 0), its_start)
end

local function fixed_window_charge(raw, now, hits, age_us, overdraft, limit, window_us, b1, b2, b3, b4)
  local start, stop = fixed_window_around(now, window_us, b1, b2, b3, b4)
  local count, its_start = fixed_window_read(raw, start)
  hits = fixed_window_is_of(now, age_us, start, window_us, b1) and hits or 0
  return fixed_window_write(now, start, stop, count + min(hits, max(min(limit + overdraft, LATEST) - count, 0)), its_start)
end
