-- Decides requests that touch one cell each and stand for themselves alone, first in, first out: most requests do, and
-- need little of decide.lua.
--
-- KEYS, items and reply are those of decide.lua.

local REQUEST = "<I2I1I2I4I2c1I1ddddddd"
-- Most calls carry one request, and need no lists.
if items == 1 then
  local _, _, _, _, _, letter, flags, hits, a, b, c, d, e, f = from_bytes(REQUEST, plan, at)
  if flags < COUNTS_REFUSED then
    local wait, remaining, reset_after_us, after, expires_s =
      decide(letter, KEYS[1], raws[1], hits, a, b, c, d, e, f)
    if after then
      keep(KEYS[1], after ~= "" and after, expires_s)
    end
    return to_bytes("<ddd", wait, remaining, reset_after_us)
  end
end

local reply = {}
for index = 1, items do
  local _, key, letter, flags, hits, a, b, c, d, e, f
  _, _, _, _, key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(REQUEST, plan, at)
  local wait, remaining, reset_after_us, after, expires_s =
    decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  if after then
    raws[key], changed[key] = after ~= "" and after, expires_s or changed[key] or 0
  end
  if wait < 0 and flags >= COUNTS_REFUSED then
    wait, remaining, reset_after_us = look_noted(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e)
    after, expires_s = note_refused(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e)
    if after then
      raws[key], changed[key] = after ~= "" and after, expires_s or changed[key] or 0
    end
  end
  reply[index] = to_bytes("<ddd", wait, remaining, reset_after_us)
end
for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
return table.concat(reply)
