-- Requests that only the holds of others refuse, and what others must know of this call's holds (holds.lua).

-- Says of how many of `count` equal requests each would spend, where not all of them pass.
local function tell_how_many(count, spends)
  for index = 1, #spends do
    local s = spends[index]
    tell(0, 0, 0)
    tell_admitted(spending(count, s), 0, 0, 0)
    if s.flags >= DEBT then
      tell_admitted(0, 0, 0, 0)
    end
  end
end

-- Says that a request is in doubt, and what it is told if it cannot wait: that it is refused, and to come again soon.
local function tell_in_doubt(count, passed, mode, spends, is_reserved)
  is_for_good = true
  tell(IN_DOUBT, now, passed)
  if count > 1 and is_reserved and mode ~= REFUSED_ELSEWHERE then
    return tell_how_many(count, spends)
  end
  for index = 1, #spends do
    local s = spends[index]
    local wait, remaining, reset_after_us = look_unspent(count, s)
    wait = is_held(s, wait) and HELD_WAIT or wait
    tell(wait, remaining, reset_after_us)
    if count > 1 then
      tell_admitted(0, wait, remaining, reset_after_us)
      if s.flags >= DEBT then
        tell_admitted(0, wait, remaining, reset_after_us)
      end
    elseif is_reserved then
      tell(wait, remaining, reset_after_us)
    end
  end
end

-- How much of each cell, by the number of its key, this call holds for now.
local taken = {}

-- Lists who holds some of a cell, if that may be missing to others.
local function hold_if_scarce(remaining, times, reservation, s)
  local key, hits = s.key, s.hits
  taken[key] = (taken[key] or 0) + hits * times
  if hits > 0 and times > 0 and (remaining < SCARCE * taken[key] + FEW or s.letter == "l" and s.c > 0) then
    hold(key, KEYS[reservation])
  end
end
