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
local function go_over(count, s)
  local wait, remaining, reset_after_us, _
  if has(s.flags, CAP) then
    _, remaining = spend_hits(s, s.hits)
    wait, _, reset_after_us = spend_hits(s, remaining)
    return wait, -remaining, reset_after_us, 0
  end
  local key = s.key
  become(key, charge(s.letter, KEYS[key], raws[key], s.hits * count, 0, most_debt(s.letter, s.a, s.b),
    s.a, s.b, s.c, s.d, s.e, s.f))
  if s.letter == "l" then
    wait, remaining, reset_after_us = look_at(s, s.hits, 0)
  else
    wait, remaining, reset_after_us =
      decide(s.letter, KEYS[key], raws[key], s.hits, s.a, s.b, s.c, s.d, s.e, s.f)
  end
  return wait, -1 - remaining, reset_after_us, count
end

-- Spends what a request asks that may go over: as `go_over`, unless it fits.
local function spend_over(s)
  local wait, remaining, reset_after_us = spend_hits(s, s.hits)
  if wait >= 0 then
    return wait, remaining, reset_after_us, 1
  end
  return go_over(1, s)
end
