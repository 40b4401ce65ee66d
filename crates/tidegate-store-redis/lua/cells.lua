-- The cells of a decision: their values are read at once, changed in turn, and written when all is decided.

local ENFORCED, COUNTS_REFUSED, ANY_OF, DEBT, CHARGE, CAP, PENALTY = 1, 2, 4, 8, 16, 32, 64
-- What a reservation changed is remembered for so long, and so is that it was cancelled.
local RESERVATION_MS = 5000
-- A spend as decide.lua describes it.
local SPEND = "<I2c1I1dddddddI2"

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
  elseif letter == "c" or letter == "k" then
    return concurrency_decide(key, now, hits, f > 0 and lease_name(f), a, b, c)
  end
  error("no algorithm has the letter " .. letter)
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

-- The `count` spends that stand at `at`, and what follows them.
local function spends_at(count, at)
  local spends = {}
  for index = 1, count do
    local key, letter, flags, hits, a, b, c, d, e, f, group
    key, letter, flags, hits, a, b, c, d, e, f, group, at = from_bytes(SPEND, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    spends[index] = {
      key = key, letter = letter, flags = flags, hits = hits, group = group,
      a = a, b = b, c = c, d = d, e = e, f = f,
    }
  end
  return spends, at
end

-- Spends `hits` of what a spend touches: what it is told.
local function spend_hits(s, hits)
  local wait, remaining, reset_after_us, after, expires_s =
    decide(s.letter, KEYS[s.key], raws[s.key], hits, s.a, s.b, s.c, s.d, s.e, s.f)
  become(s.key, after, expires_s)
  return wait, remaining, reset_after_us
end

-- What `spend_hits` would say once `noted` more refused requests have been noted. Changes nothing.
local function look_at(s, hits, noted)
  return look(s.letter, KEYS[s.key], raws[s.key], hits, noted, s.a, s.b, s.c, s.d, s.e, s.f)
end
