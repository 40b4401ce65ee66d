-- What a reservation changed, so that cancel.lua can put it back.

-- When the lease of a spend would end; 0 if it is not held.
local function held_until(s)
  local until_us = tonumber(call("ZSCORE", KEYS[s.key], lease_name(s.f)) or 0)
  return until_us > now and until_us or 0
end

-- Whether a spend takes a lease again that is held.
local function is_renewed(s)
  return (s.letter == "c" or s.letter == "k") and s.f > 0 and held_until(s) > 0
end

-- A value with its length before it.
local function with_length(value)
  value = value or ""
  return to_bytes("<I4", #value) .. value
end

-- What entering hits changed in a log: "\0" nothing, "\1" then how many entries counted before (4 bytes), the newest of
-- them (8-byte float), how many count after (4), whether what was pushed out follows (1), and that.
local function trace_of_log(key)
  local log = log_traces and log_traces[key]
  if not log then
    return "\0"
  end
  local kept = log.dropped and 1 or 0
  return "\1" .. to_bytes("<I4dI4I1", log.count, log.newest, log.after, kept) .. with_length(log.dropped)
end

-- What a spend changed, and how often (4 bytes): "\0" nothing, "\1" then the value before and after, "\2" a lease, then
-- when it would have ended had it not been taken again (8-byte float; 0 if it was not held), "\3" a log, see above. What
-- was noted of a refused request beside leases follows in either case.
local function trace(s, before, times, until_us)
  local often = to_bytes("<I4", times)
  if s.letter == "l" then
    return "\3" .. often .. trace_of_log(KEYS[s.key])
  elseif until_us then
    return "\2" .. often .. to_bytes("<d", until_us) .. trace_of_log(KEYS[s.c])
  elseif s.letter == "c" or s.letter == "k" then
    return "\0" .. often .. trace_of_log(KEYS[s.c])
  elseif before ~= raws[s.key] then
    return "\1" .. often .. with_length(before) .. with_length(raws[s.key])
  end
  return "\0" .. often
end
