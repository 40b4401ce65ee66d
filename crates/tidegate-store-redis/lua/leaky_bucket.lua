-- Leaky bucket as a queue: requests leave at a steady rate, each told how long to wait. Twin of `leaky_bucket.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua)
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  as in meter.lua
-- Limit  work_per_hit, drained_per_us, period_us, coarseness, queue (work that it holds when it takes one hit more),
--        longest_wait (work ahead of a request that waits as long as it may)

local function leaky_bucket_remaining(backlog, work_per_hit, queue, longest_wait)
  if backlog > longest_wait then
    return 0
  end
  return floor_div(queue - backlog, work_per_hit) + 1
end

local function leaky_bucket_decide(
  raw, now, hits, work_per_hit, drained_per_us, period_us, coarseness, queue, longest_wait
)
  local backlog, expires_s = meter_read(raw, now, work_per_hit, drained_per_us, period_us, coarseness)
  local reset_after_us = ceil_div(backlog, drained_per_us)
  local wanted, wait = max(hits, 1), -1
  if wanted <= floor_div(queue, work_per_hit) + 1 then
    local highest_backlog = min(queue - (wanted - 1) * work_per_hit, longest_wait)
    if backlog > highest_backlog then
      wait = -2 - ceil_div(backlog - highest_backlog, drained_per_us)
    elseif hits == 0 then
      wait = reset_after_us
    else
      local filled = backlog + wanted * work_per_hit
      local remaining = leaky_bucket_remaining(filled, work_per_hit, queue, longest_wait)
      local empty_in_us = ceil_div(filled, drained_per_us)
      return reset_after_us, remaining, empty_in_us,
        meter_write(filled, empty_in_us, now, coarseness, expires_s)
    end
  end
  return wait, leaky_bucket_remaining(backlog, work_per_hit, queue, longest_wait), reset_after_us,
    meter_rest(raw, now, reset_after_us, expires_s)
end

local function leaky_bucket_charge(raw, now, hits, age_us, overdraft, work_per_hit, drained_per_us, period_us, coarseness, queue)
  local capacity = floor_div(queue, work_per_hit) + 1
  local left, expires_s =
    meter_charge(raw, now, hits, age_us, overdraft, work_per_hit, drained_per_us, period_us, coarseness, capacity)
  return meter_write(left, ceil_div(left, drained_per_us), now, coarseness, expires_s)
end
