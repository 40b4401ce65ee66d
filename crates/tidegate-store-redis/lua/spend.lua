-- What becomes of one cell: it is spent from, or refuses, and then it may count that.

-- Whether the request must be decided, in doubt or not.
local is_for_good = false

-- Spends for `count` equal requests, and returns the outcome of the last.
local function spend(count, s)
  if count > 1 and s.hits > 0 and s.letter ~= "c" and s.letter ~= "k" then
    spend_hits(s, s.hits * (count - 1))
  end
  return spend_hits(s, s.hits)
end

local function note(count, s)
  if count > 0 and has(s.flags, COUNTS_REFUSED) then
    become(s.key, note_refused(s.letter, KEYS[s.key], raws[s.key], s.hits, count, s.a, s.b, s.c, s.d, s.e))
  end
end

-- The outcome of the last of `count` equal requests if they do not pass: its own refusal, or what is left unspent.
local function look_unspent(count, s)
  local noted = has(s.flags, COUNTS_REFUSED) and count or 0
  local wait, remaining, reset_after_us = look_at(s, s.hits, noted)
  if has(s.flags, CAP) and (noted == 0 or s.letter ~= "l") then
    -- One hit is enough for it to pass.
    wait, remaining, reset_after_us = look_at(s, 0, noted)
  elseif (wait >= 0 or has(s.flags, CAP)) and noted > 0 and s.letter == "l" then
    -- As many hits are noted as were asked for, whatever is looked for.
    wait, remaining, reset_after_us =
      sliding_log_look(KEYS[s.key], raws[s.key], now, 0, s.hits * noted, s.a, s.b, s.c, s.d, s.e)
  elseif wait >= 0 then
    wait, remaining, reset_after_us = look_at(s, 0, noted)
  end
  return wait, remaining, reset_after_us
end

-- Lets a cell from the future, which a clock wrote that has since stepped back, be one of now.
local function rest(s)
  if s.letter == "l" then
    become(s.key, sliding_log_rebase(KEYS[s.key], raws[s.key], now, s.d, s.e))
  elseif s.letter == "c" or s.letter == "k" then
    leases_tidy(KEYS[s.key], now, s.c)
  else
    spend_hits(s, 0)
  end
end

-- Whether a refusal with this wait is due only to the holds of others, and the request cannot wait for them.
local function is_held(s, wait)
  return is_for_good and wait < -1 and held_since(s.key)
end

-- Whether there is room for the last of `count` refused requests once the others are recorded. Its own outcome counts it too.
local function fits(count, s)
  local hits = has(s.flags, CAP) and 0 or s.hits
  if count > 1 and s.letter == "l" then
    return sliding_log_look(KEYS[s.key], raws[s.key], now, hits, s.hits * (count - 1), s.a, s.b, s.c, s.d, s.e) >= 0
  end
  return look_at(s, hits, count - 1) >= 0
end

-- Refuses `count` equal requests, and records them where refused requests count: the outcome of the last, and whether there
-- was room for it.
local function refuse(count, s)
  rest(s)
  local wait, remaining, reset_after_us = look_unspent(count, s)
  local fitted = wait >= 0
  if has(s.flags, COUNTS_REFUSED) then
    fitted = fits(count, s)
    note(count, s)
  end
  return wait, remaining, reset_after_us, fitted
end

-- Records that a rule refuses the equal requests from number `first` on, if it does, and returns the wait of its spend. A
-- refusal due only to holds starts no penalty, unless the request went over.
local function blame(blamed, s, wait, fitted, first, went_over)
  if wait < 0 and not went_over and is_held(s, wait) then
    return HELD_WAIT
  elseif not fitted and s.hits > 0 then
    blamed[s.group] = min(blamed[s.group] or first, first)
  end
  return wait
end
