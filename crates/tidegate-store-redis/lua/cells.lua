-- The cells of a decision: their values are read at once, changed in turn, and written when all is decided.

local ENFORCED, COUNTS_REFUSED, DEBT, CHARGE, CAP = 1, 2, 4, 8, 16
-- What a reservation changed is remembered for so long, and so is that it was cancelled.
local RESERVATION_MS = 5000
-- A spend as decide.lua describes it.
local SPEND = "<I2c1I1ddddddd"

local function has(flags, flag)
  return fmod(flags, 2 * flag) >= flag
end

-- Values by the number of their key, and of those that changed, when their key expires (0: as before).
local raws, changed = {}, {}
if readable == 1 then
  raws[1] = call("GET", KEYS[1])
elseif readable > 1000 then
  for key = 1, readable do
    raws[key] = call("MGET", KEYS[key])[1]
  end
elseif readable > 0 then
  raws = call("MGET", unpack(KEYS, 1, readable))
end

local function become(key, after, expires_s)
  if after then
    raws[key] = after ~= "" and after
    changed[key] = expires_s or changed[key] or 0
  end
end

-- Decides one spend: what it is told, and what the value becomes.
local function decide(letter, key, raw, hits, a, b, c, d, e, f)
  if letter == "b" then
    return token_bucket_decide(raw, now, hits, a, b, c, d, e)
  elseif letter == "w" then
    return sliding_window_decide(raw, now, hits, a, b, c, d, e)
  elseif letter == "f" then
    return fixed_window_decide(raw, now, hits, a, b, c, d, e, f)
  elseif letter == "q" then
    return leaky_bucket_decide(raw, now, hits, a, b, c, d, e, f)
  elseif letter == "l" then
    return sliding_log_decide(key, raw, now, hits, a, b, c, d, e)
  end
  return concurrency_decide(key, now, hits, f > 0 and lease_name(f), a, b, c)
end

-- What `decide` would say once `noted` more refused requests have been noted. Changes nothing.
local function look(letter, key, raw, hits, noted, a, b, c, d, e, f)
  if noted > 0 then
    return look_noted(letter, key, raw, hits, noted, a, b, c, d, e)
  elseif letter == "l" then
    return sliding_log_look(key, raw, now, hits, 0, a, b, c, d, e)
  elseif letter == "c" or letter == "k" then
    return concurrency_look(key, now, hits, 0, a, b, c)
  end
  return decide(letter, key, raw, hits, a, b, c, d, e, f)
end
