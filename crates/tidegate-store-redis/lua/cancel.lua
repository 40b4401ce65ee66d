-- Puts back what reservations changed (see decide.lua), each at most once. One that has changed nothing yet never will.
--
-- A cell that nobody touched since is as it was before. In others the hits are given back.

-- The value whose length stands at `from`, and what follows it.
local function value_at(record, from)
  local length = from_bytes("<I4", record, from)
  return sub(record, from + 4, from + 3 + length), from + 4 + length
end

-- What a cell becomes in which somebody else has spent since.
local function give_back(letter, key, raw, before, hits, age_us, a, b, c, d, e, f)
  if letter ~= "c" and letter ~= "z" then
    return refund(letter, key, raw, hits, age_us, a, b, c, d, e, f)
  elseif f == 0 then
    return
  end
  local name = sub(ARGV[2], 8 * f - 7, 8 * f)
  -- One that was held before is only renewed by being taken again.
  if letter == "c" and before ~= "" and lease_position(sub(before, 14), name, from_bytes("<I1", before, 13)) then
    return
  end
  local _, after, expires_s = release(letter, key, raw, name, a, b, c)
  return after, expires_s
end

-- Lets a lease end when it would have, had it not been taken again at `taken_at`; unless somebody renewed it since.
local function shorten_again(key, until_us, taken_at, f, ttl_us, width)
  leases_large_open(key, width)
  local name = sub(ARGV[2], 8 * f - 7, 8 * f)
  if tonumber(call("ZSCORE", key, name) or 0) == min(taken_at + ttl_us, LATEST) then
    call("ZADD", key, until_us, name)
  end
end

local function put_back(record, spends, at)
  local reserved_at, from = from_bytes("<d", record)
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    local what, before, after = sub(record, from, from), "", ""
    local times = from_bytes("<I4", record, from + 1)
    from = from + 5
    if what == "\1" then
      before, from = value_at(record, from)
      after, from = value_at(record, from)
    elseif what == "\3" then
      local until_us = from_bytes("<d", record, from)
      shorten_again(KEYS[key], until_us, reserved_at, f, b, c)
      from = from + 8
    end
    if what == "\1" and (raws[key] or "") == after then
      -- A key that is gone has no expiry to keep; what it held was about to end.
      become(key, before, not raws[key] and ceil_div(now, 1000000) + 60 or nil)
    elseif what == "\1" or what == "\2" then
      local age_us = max(now - reserved_at, 0)
      become(key, give_back(letter, KEYS[key], raws[key], before, hits * times, age_us, a, b, c, d, e, f))
    end
    if has(flags, COUNTS_REFUSED) then
      become(key, note_refused(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e))
    end
  end
end

local function cancel(spends, reservation, at)
  local record = call("GET", reservation)
  if record and record ~= "" then
    put_back(record, spends, at)
    call("DEL", reservation)
  else
    call("SET", reservation, "", "PX", RESERVATION_MS)
  end
end
