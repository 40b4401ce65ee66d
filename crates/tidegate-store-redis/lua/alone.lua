-- Decides requests that touch one cell each and stand for themselves alone, first in, first out: most requests do, and
-- need little of decide.lua.
--
-- KEYS and reply are those of decide.lua.
-- Items    runs of requests with the same limit: how many (2 bytes), algorithm (a letter), flags (1 byte) and the limit's
--          six numbers as in decide.lua, then of each request the number of its key (2 bytes) and its hits (8-byte float)

local RUN, REQUEST, DOUBTFUL = "<I2c1I1dddddd", "<I2d", "<dddddd"
-- Most calls carry one request, and need no lists.
if items == 1 then
  local _, letter, flags, a, b, c, d, e, f, _, hits = from_bytes("<I2c1I1ddddddI2d", plan, at)
  if flags < COUNTS_REFUSED then
    if letter == "l" then
      raws[1] = log_adopted(KEYS[1], raws[1], now, a, b, d, e)
    end
    local wait, remaining, reset_after_us, after, expires_s =
      decide(letter, KEYS[1], raws[1], hits, a, b, c, d, e, f)
    if after then
      keep(KEYS[1], after ~= "" and after, expires_s)
    end
    if letter_at > 0 and wait < -1 and has(flags, ENFORCED) and may_yet_pass(1, 0) then
      return to_bytes("<ddddddd", IN_DOUBT, now, 0, HELD_WAIT, remaining, reset_after_us, now)
    end
    return to_bytes("<dddd", wait, remaining, reset_after_us, now)
  end
end

local reply, told = {}, 0
while told < items do
  local run, letter, flags, a, b, c, d, e, f
  run, letter, flags, a, b, c, d, e, f, at = from_bytes(RUN, plan, at)
  for _ = 1, run do
    local key, hits
    key, hits, at = from_bytes(REQUEST, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    local wait, remaining, reset_after_us, after, expires_s =
      decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
    if after then
      raws[key], changed[key] = after ~= "" and after, expires_s or changed[key] or 0
    end
    told = told + 1
    if letter_at > 0 and wait < -1 and has(flags, ENFORCED) and may_yet_pass(key, 0) then
      reply[told] = to_bytes(DOUBTFUL, IN_DOUBT, now, 0, HELD_WAIT, remaining, reset_after_us)
    else
      if wait < 0 and flags >= COUNTS_REFUSED then
        wait, remaining, reset_after_us = look_noted(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e)
        after, expires_s = note_refused(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e)
        if after then
          raws[key], changed[key] = after ~= "" and after, expires_s or changed[key] or 0
        end
      end
      reply[told] = to_bytes("<ddd", wait, remaining, reset_after_us)
    end
  end
end
for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
reply[told + 1] = to_bytes("<d", now)
return table.concat(reply)
