-- Puts back what reservations changed (see decide.lua), each at most once. One that has changed nothing yet never will.
--
-- A cell that nobody touched since is as it was before. In others the hits are given back.

-- The value whose length stands at `from`, and what follows it.
local function value_at(record, from)
  local length = from_bytes("<I4", record, from)
  return sub(record, from + 4, from + 3 + length), from + 4 + length
end

-- Lets a lease that was taken at `taken_at` end when it would have ended before, or now; unless somebody renewed it since.
local function put_back_lease(key, name, until_us, taken_at, ttl_us)
  if until_us == 0 then
    concurrency_release(key, now, name)
  elseif tonumber(call("ZSCORE", key, name) or 0) == min(taken_at + ttl_us, LATEST) then
    call("ZADD", key, until_us, name)
  end
end

-- Puts a log back whose trace stands at `from`: what it becomes, and what follows.
local function put_back_log(record, from, key, raw, hits, taken_at, window_us, width, large)
  if sub(record, from, from) == "\0" then
    return nil, from + 1
  end
  local before, newest_before, after, kept = from_bytes("<I4dI4I1", record, from + 1)
  local dropped
  dropped, from = value_at(record, from + 18)
  local count, newest = log_open(key, raw, width, large)
  if kept == 0 then
    -- Removing what pushed them out would free whoever had filled the log.
    return nil, from
  elseif count == after and newest == taken_at then
    return sliding_log_restore(key, raw, before, newest_before, dropped, width, large), from
  elseif dropped ~= "" then
    -- Nor can they be put back among what came since: without them, to remove an entry would free somebody.
    return nil, from
  end
  return sliding_log_refund(key, raw, now, hits, max(now - taken_at, 0), window_us, width, large), from
end

local function put_back(record, spends, reservation, at)
  local taken_at, from = from_bytes("<d", record)
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    local what, times, after = sub(record, from, from), nil, nil
    let_go(key, reservation)
    times, from = from_bytes("<I4", record, from + 1)
    if what == "\1" then
      local before
      before, from = value_at(record, from)
      after, from = value_at(record, from)
      if (raws[key] or "") == after then
        -- A key that is gone has no expiry to keep; what it held was about to end.
        become(key, before, not raws[key] and ceil_div(now, 1000000) + 60 or nil)
      else
        become(key, refund(letter, KEYS[key], raws[key], hits * times, max(now - taken_at, 0), a, b, c, d, e, f))
      end
    elseif what == "\3" then
      after, from = put_back_log(record, from, KEYS[key], raws[key], hits * times, taken_at, b, d, e)
      become(key, after)
    elseif letter == "c" or letter == "k" then
      if what == "\2" then
        put_back_lease(KEYS[key], lease_name(f), from_bytes("<d", record, from), taken_at, b)
        from = from + 8
      end
      after, from = put_back_log(record, from, KEYS[c], nil, times, taken_at, b, 7, 1)
    end
    if has(flags, COUNTS_REFUSED) then
      become(key, note_refused(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e))
    end
  end
end

local function cancel(spends, reservation, at)
  local record = call("GET", reservation)
  if record and record ~= "" then
    put_back(record, spends, reservation, at)
    call("DEL", reservation)
  else
    call("SET", reservation, "", "PX", RESERVATION_MS)
  end
end
