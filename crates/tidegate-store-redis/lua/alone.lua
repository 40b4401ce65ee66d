-- Decides requests that touch one cell each, first in, first out: most requests do, and need little of decide.lua.
--
-- KEYS, items and reply are those of decide.lua.

local reply = {}
for index = 1, items do
  local spends, mode, reservation, key, letter, flags, hits, a, b, c, d, e, f
  spends, mode, reservation, key, letter, flags, hits, a, b, c, d, e, f, at =
    from_bytes("<I2I1I2I2c1I1ddddddd", plan, at)
  local wait, remaining, reset_after_us, after, expires_s =
    decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  become(key, after, expires_s)
  if wait < 0 and flags >= COUNTS_REFUSED then
    become(key, note_refused(letter, KEYS[key], raws[key], hits, a, b, c, d, e))
  end
  reply[index] = to_bytes("<ddd", wait, remaining, reset_after_us)
end
for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
return table.concat(reply)
