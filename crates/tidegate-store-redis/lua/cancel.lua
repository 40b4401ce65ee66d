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

local function put_back(record, spends, reservation)
  local taken_at, from = from_bytes("<d", record)
  for index = 1, #spends do
    local s = spends[index]
    local key, letter, is_penalty = s.key, s.letter, has(s.flags, PENALTY)
    local hits = is_penalty and 1 or s.hits
    local what, times, after = sub(record, from, from), nil, nil
    local expires_s
    let_go(key, reservation)
    times, from = from_bytes("<I4", record, from + 1)
    if what == "\1" then
      local before
      before, from = value_at(record, from)
      after, from = value_at(record, from)
      if (raws[key] or "") == after then
        -- A key that is gone has no expiry to keep; what it held was about to end.
        after, expires_s = before, not raws[key] and ceil_div(now, 1000000) + 60 or nil
      else
        after, expires_s =
          refund(letter, KEYS[key], raws[key], hits * times, max(now - taken_at, 0), s.a, s.b, s.c, s.d, s.e, s.f)
      end
    elseif what == "\3" then
      after, from = put_back_log(record, from, KEYS[key], raws[key], hits * times, taken_at, s.b, s.d, s.e)
    elseif letter == "c" or letter == "k" then
      if what == "\2" then
        put_back_lease(KEYS[key], lease_name(s.f), from_bytes("<d", record, from), taken_at, s.b)
        from = from + 8
      end
      local _
      _, from = put_back_log(record, from, KEYS[s.c], nil, times, taken_at, s.b, 7, 1)
    end
    -- A penalty that the request started stays if it is refused after all, and so does what is noted of refused requests.
    if not is_penalty or has(s.flags, COUNTS_REFUSED) then
      become(key, after, expires_s)
    end
    if not is_penalty and has(s.flags, COUNTS_REFUSED) then
      become(key, note_refused(letter, KEYS[key], raws[key], hits, 1, s.a, s.b, s.c, s.d, s.e))
    end
  end
end

local function cancel(spends, reservation)
  local record = call("GET", reservation)
  if record and record ~= "" then
    put_back(record, spends, reservation)
    call("DEL", reservation)
  else
    call("SET", reservation, "", "PX", RESERVATION_MS)
  end
end
