-- Token bucket: bursts up to `burst`, refilled at a rate, the two independent. Twin of `token_bucket.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua)
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  as in meter.lua
-- Limit  work_per_hit, drained_per_us, period_us, coarseness, burst

local function token_bucket_decide(raw, now, hits, work_per_hit, drained_per_us, period_us, coarseness, burst)
  local backlog, expires_s = meter_read(raw, now, work_per_hit, drained_per_us, period_us, coarseness)
  local capacity, wanted, wait = burst * work_per_hit, max(hits, 1), -1
  if wanted <= burst then
    local highest_backlog = capacity - wanted * work_per_hit
    if backlog <= highest_backlog and hits > 0 then
      local filled = backlog + wanted * work_per_hit
      local empty_in_us = ceil_div(filled, drained_per_us)
      return 0, floor_div(capacity - filled, work_per_hit), empty_in_us,
        meter_write(filled, empty_in_us, now, coarseness, expires_s)
    elseif backlog <= highest_backlog then
      wait = 0
    else
      wait = -2 - ceil_div(backlog - highest_backlog, drained_per_us)
    end
  end
  local reset_after_us = ceil_div(backlog, drained_per_us)
  return wait, floor_div(max(capacity - backlog, 0), work_per_hit), reset_after_us,
    meter_rest(raw, now, reset_after_us, expires_s)
end

local function token_bucket_refund(raw, now, hits, work_per_hit, drained_per_us, period_us, coarseness, burst)
  local backlog, expires_s = meter_read(raw, now, work_per_hit, drained_per_us, period_us, coarseness)
  local left = max(backlog - hits * work_per_hit, 0)
  return meter_write(left, ceil_div(left, drained_per_us), now, coarseness, expires_s)
end

local function token_bucket_charge(raw, now, hits, age_us, overdraft, work_per_hit, drained_per_us, period_us, coarseness, burst)
  local left, expires_s =
    meter_charge(raw, now, hits, age_us, overdraft, work_per_hit, drained_per_us, period_us, coarseness, burst)
  return meter_write(left, ceil_div(left, drained_per_us), now, coarseness, expires_s)
end
