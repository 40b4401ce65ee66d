-- Decides requests first in, first out, each from all its cells or from none. Twin of `request.rs`.
--
-- KEYS     the cells, then one key per reservation
-- Items    requests: spends (2 bytes), mode (1 byte), reservation (2 bytes: the number of its key, or 0), then each spend:
--          key (2 bytes: its number), algorithm (a letter), flags (1 byte), hits and the limit's six numbers (8-byte
--          floats; of a concurrency limit the sixth is the number of the lease's name in ARGV[2], or 0)
-- Modes    0 the whole request, 1 a part of one whose other parts are decided elsewhere, 2 a part of one that is refused
--          elsewhere, 3 a whole request that may have to be undone, 4 to be undone (cancel.lua)
-- Flags    1 enforced, 2 refused hits count
-- Reply    wait, remaining, reset_after_us of every spend, as 8-byte floats. With a reservation, each is followed by what
--          these are if the request does not pass elsewhere. What is undone is told nothing.
--
-- What an item with a reservation changes is remembered under its key for a while, so that it can be put back, once.

local PART, REFUSED_ELSEWHERE, CANCEL = 1, 2, 4

-- What `decide` would say. Changes nothing.
local function look(letter, key, raw, hits, a, b, c, d, e, f)
  if letter == "l" then
    return sliding_log_look(key, raw, now, hits, a, b, c, d, e)
  elseif letter == "c" then
    return concurrency_look(key, raw, now, hits, a, b, c)
  elseif letter == "z" then
    return concurrency_large_look(key, now, hits, a, b, c)
  end
  return decide(letter, key, raw, hits, a, b, c, d, e, f)
end

local reply, told = {}, 0
local function tell(wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<ddd", wait, remaining, reset_after_us)
end

-- Whether any enforced spend of the request at `at` is refused.
local function is_refused(spends, at)
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    if has(flags, ENFORCED) and look(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f) < 0 then
      return true
    end
  end
  return false
end

-- What a spend is told if its request does not pass: its own refusal, or what is left unspent.
local function look_unspent(letter, key, hits, a, b, c, d, e, f)
  local wait, remaining, reset_after_us, after, expires_s =
    look(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  if wait < 0 then
    return wait, remaining, reset_after_us, after, expires_s
  end
  return look(letter, KEYS[key], raws[key], 0, a, b, c, d, e, f)
end

-- A value with its length before it.
local function with_length(value)
  value = value or ""
  return to_bytes("<I4", #value) .. value
end

-- When the lease of a spend ends that was held before, where leases are kept in place.
local function held_until(letter, key, f)
  local until_us = letter == "z" and f > 0 and call("ZSCORE", KEYS[key], lease_name(f))
  return until_us and tonumber(until_us) > now and tonumber(until_us)
end

-- What a spend changed: "\0" nothing, "\1" then the value before and after, "\2" something that is kept in place, "\3"
-- then when a lease that is kept in place would have ended had it not been taken again.
local function trace(key, before, spent, until_us)
  if until_us and spent then
    return "\3" .. to_bytes("<d", until_us)
  elseif key > readable then
    return spent and "\2" or "\0"
  elseif before ~= raws[key] then
    return "\1" .. with_length(before) .. with_length(raws[key])
  end
  return "\0"
end

-- Tells what is left unspent, and notes the refusal where refused requests count.
local function refuse(spends, reservation, at)
  local traces = {}
  for index = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    local before = raws[key]
    local wait, remaining, reset_after_us, after, expires_s = look_unspent(letter, key, hits, a, b, c, d, e, f)
    tell(wait, remaining, reset_after_us)
    if reservation > 0 then
      tell(wait, remaining, reset_after_us)
    end
    -- Where nothing is spent, `after` only lets the key last longer.
    become(key, after, expires_s)
    if has(flags, COUNTS_REFUSED) then
      become(key, note_refused(letter, KEYS[key], raws[key], hits, a, b, c, d, e))
    end
    traces[index] = reservation > 0 and trace(key, before, has(flags, COUNTS_REFUSED))
  end
  return at, traces
end

local function spend(spends, reservation, at)
  local traces = {}
  for index = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    local before = raws[key]
    local unspent_wait, unspent, unspent_reset, until_us
    if reservation > 0 then
      unspent_wait, unspent, unspent_reset = look_unspent(letter, key, hits, a, b, c, d, e, f)
      until_us = held_until(letter, key, f)
    end
    local wait, remaining, reset_after_us, after, expires_s =
      decide(letter, KEYS[key], before, hits, a, b, c, d, e, f)
    become(key, after, expires_s)
    if wait < 0 and has(flags, COUNTS_REFUSED) then
      become(key, note_refused(letter, KEYS[key], raws[key], hits, a, b, c, d, e))
    end
    tell(wait, remaining, reset_after_us)
    if reservation > 0 then
      tell(unspent_wait, unspent, unspent_reset)
      traces[index] = trace(key, before, hits > 0 and (wait >= 0 or has(flags, COUNTS_REFUSED)), until_us)
    end
  end
  return at, traces
end

local records = {}
for _ = 1, items do
  local spends, mode, reservation = from_bytes("<I2I1I2", plan, at)
  if mode == CANCEL then
    cancel(spends, KEYS[reservation], at + 5)
    at = at + 5 + 60 * spends
  else
    -- One limit alone decides in one go: its refusal changes nothing by itself.
    local alone, traces = mode ~= PART and spends == 1, nil
    -- One that was cancelled before it came must not spend any more.
    local cancelled = reservation > 0 and call("EXISTS", KEYS[reservation]) == 1
    if mode == REFUSED_ELSEWHERE or cancelled or (not alone and is_refused(spends, at + 5)) then
      at, traces = refuse(spends, reservation, at + 5)
    else
      at, traces = spend(spends, reservation, at + 5)
    end
    if reservation > 0 and not cancelled then
      records[reservation] = to_bytes("<d", now) .. table.concat(traces)
    end
  end
end

for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
for key, record in pairs(records) do
  call("SET", KEYS[key], record, "PX", time_is_given and TEST_TTL_MS or RESERVATION_MS)
end
return table.concat(reply)
