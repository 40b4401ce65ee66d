-- Work that arrives in hits and drains with time: what token bucket and leaky bucket share. Twin of `meter.rs`.
--
-- Value  backlog (7 bytes), as_of_us (7), coarseness (1), expires_s (5): when its key expires

-- The backlog at `now`, in this meter's unit, and when the key expires.
local function meter_read(raw, now, work_per_hit, drained_per_us, period_us, coarseness)
  if not raw then
    return 0, 0
  end
  local backlog, as_of_us, its_coarseness, expires_s = from_bytes("<I7I7I1I5", raw)
  if its_coarseness ~= coarseness then
    -- Whole hits, rounded up.
    backlog = ceil_div(backlog, ceil_div(period_us, 2 ^ its_coarseness)) * work_per_hit
  end
  backlog = min(backlog, LATEST - drained_per_us)
  -- A value from the future is one that a clock, since stepped back, wrote: it drains from now on.
  if now <= as_of_us then
    return backlog, expires_s
  end
  -- Time far beyond the whole backlog must not be multiplied: it might not fit.
  if now - as_of_us >= backlog / drained_per_us + 1 then
    return 0, expires_s
  end
  return max(backlog - (now - as_of_us) * drained_per_us, 0), expires_s
end

-- What a bucket of `quota` hits holds by hits that were already spent, `age_us` ago or when the value was written, if that is
-- later. They may go beyond the quota by `overdraft`.
local function meter_charge(raw, now, hits, age_us, overdraft, work_per_hit, drained_per_us, period_us, coarseness, quota)
  local last_change = raw and from_bytes("<I7", raw, 8) or 0
  local spent_at = min(max(now - age_us, last_change), now)
  local backlog, expires_s = meter_read(raw, spent_at, work_per_hit, drained_per_us, period_us, coarseness)
  -- A product that is not exact is larger than what it is compared with.
  local most = min((quota + overdraft) * work_per_hit, LATEST - drained_per_us)
  -- By then even a bucket that was full would have drained.
  if age_us >= ceil_div(most, drained_per_us) then
    hits = 0
  end
  local filled = backlog + min(hits * work_per_hit, max(most - backlog, 0))
  local left = 0
  if now - spent_at < filled / drained_per_us + 1 then
    left = max(filled - (now - spent_at) * drained_per_us, 0)
  end
  return left, expires_s
end

-- `empty_in_us` is how long the backlog takes to drain.
local function meter_write(backlog, empty_in_us, now, coarseness, expires_s)
  local beyond_us = expires_s * 1000000 - now - empty_in_us
  if backlog == 0 then
    return ""
  elseif beyond_us >= 0 and beyond_us <= TOO_LATE_US then
    return to_bytes("<I7I7I1I5", backlog, now, coarseness, expires_s)
  end
  expires_s = expiry_beyond(now + empty_in_us, now)
  return to_bytes("<I7I7I1I5", backlog, now, coarseness, expires_s), expires_s
end

-- What becomes of a value that nothing is spent from. One from the future counts as written now, and is written so: left as
-- it is, it would stand still until the clock had caught up. A rate that was lowered makes a value last longer than its key
-- would, and a key from the future lasts too long.
local function meter_rest(raw, now, reset_after_us, expires_s)
  if not raw then
    return
  end
  local as_of_us = from_bytes("<I7", raw, 8)
  local beyond_us = expires_s * 1000000 - now - reset_after_us
  local is_off = beyond_us < 0 or beyond_us > TOO_LATE_US
  if as_of_us <= now and not is_off then
    return
  end
  local later_s = is_off and expiry_beyond(now + reset_after_us, now)
  local as_of = to_bytes("<I7", min(as_of_us, now))
  return sub(raw, 1, 7) .. as_of .. sub(raw, 15, 15) .. to_bytes("<I5", later_s or expires_s), later_s or nil
end
