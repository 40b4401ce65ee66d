-- What a cost above what is left does, where it is not just refused. Twin of `over.rs`.

-- The debt of a bucket is repaid within this time (`DEBT_REPAID_WITHIN`).
local DEBT_REPAID_WITHIN_US = 2592000000000

-- How far a debt may go beyond the quota.
local function most_debt(letter, work_per_hit, drained_per_us)
  if letter == "b" or letter == "q" then
    -- A product that is not exact is larger than what it is compared with.
    return floor_div(min(DEBT_REPAID_WITHIN_US * drained_per_us, LATEST), work_per_hit)
  end
  return LATEST
end

-- Decides `count` equal requests of which none fits, one or any number of charges: what the last of them is told, and how
-- often it is put back in a cell that others changed since. Of a request that is capped, `remaining` is what it spent,
-- negative. Of one that goes into debt, it is -1 - what is left.
local function go_over(count, flags, letter, key, hits, a, b, c, d, e, f)
  local wait, remaining, reset_after_us, after, expires_s, _
  if has(flags, CAP) then
    _, remaining, _, after, expires_s = decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
    become(key, after, expires_s)
    wait, _, reset_after_us, after, expires_s =
      decide(letter, KEYS[key], raws[key], remaining, a, b, c, d, e, f)
    become(key, after, expires_s)
    return wait, -remaining, reset_after_us, 0
  end
  become(key, charge(letter, KEYS[key], raws[key], hits * count, 0, most_debt(letter, a, b), a, b, c, d, e, f))
  if letter == "l" then
    wait, remaining, reset_after_us = sliding_log_look(KEYS[key], raws[key], now, hits, 0, a, b, c, d, e)
  else
    wait, remaining, reset_after_us = decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  end
  return wait, -1 - remaining, reset_after_us, count
end

-- Spends what a request asks that may go over: as `go_over`, unless it fits.
local function spend_over(flags, letter, key, hits, a, b, c, d, e, f)
  local wait, remaining, reset_after_us, after, expires_s =
    decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  become(key, after, expires_s)
  if wait >= 0 then
    return wait, remaining, reset_after_us, 1
  end
  return go_over(1, flags, letter, key, hits, a, b, c, d, e, f)
end
