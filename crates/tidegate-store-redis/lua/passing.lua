-- How many of several equal requests pass. Twin of `fold.rs`.

-- How many of `most` equal spends find room, one after another, and the wait of the first.
local function admits(most, s)
  local wait, remaining = look_at(s, s.hits, 0)
  if wait < 0 then
    return 0, wait
  elseif s.hits == 0 or s.letter == "c" or s.letter == "k" then
    return most, wait
  elseif s.letter == "l" and s.c > 0 then
    return min(1, most), wait
  end
  return min(1 + floor_div(remaining, s.hits), most), wait
end

-- How many of `most` equal requests spend here, one after another, and the wait of the first. Where they may go over, those
-- that fit do, and one more if not all is spent then.
local function spending(most, s)
  if has(s.flags, CHARGE) then
    return most, 0
  end
  local fit, wait = admits(most, s)
  if s.flags < DEBT or fit == most or fit > 0 and s.letter == "l" and s.c > 0 then
    return fit, wait
  end
  local all_wait, remaining = look_at(s, s.hits * fit, 0)
  return fit + (all_wait >= 0 and remaining > 0 and 1 or 0), all_wait
end

-- How many of `count` equal requests with these spends may spend, and whether some cell refuses only because of holds that may
-- be put back. One such cell is enough, also where another refuses for certain: small holds are not listed, and are put back
-- together with the listed ones.
local function passing(count, spends, since, is_whole)
  local passed, any_of, in_doubt, any_in_doubt = count, nil, false, false
  for index = 1, #spends do
    local s = spends[index]
    local is_any_of = s.flags ~= ENFORCED and is_whole and has(s.flags, ANY_OF)
    local is_asked = s.flags == ENFORCED or (is_any_of or has(s.flags, ENFORCED)) and not has(s.flags, CHARGE)
    -- Where nothing can be in doubt, the first refusal is enough.
    if is_asked and (passed > 0 or letter_at > 0) then
      local admitted, wait = spending(count, s)
      local doubtful = letter_at > 0 and admitted < count and wait ~= -1 and may_yet_pass(s.key, since)
      if is_any_of then
        any_of, any_in_doubt = max(any_of or 0, admitted), any_in_doubt or doubtful
      else
        passed, in_doubt = min(passed, admitted), in_doubt or doubtful
      end
    end
  end
  if any_of then
    return min(passed, any_of), in_doubt or any_in_doubt and any_of < count
  end
  return passed, in_doubt
end

local function is_shadow(s)
  return not has(s.flags, ENFORCED) and not has(s.flags, ANY_OF)
end

-- Of how many of `passed` of `count` equal requests each shadow rule lets all its limits be spent from, by the rule's number.
-- For a single request, a limit alone is asked when it is spent from.
local function shadows_of(count, passed, spends)
  local spent, sizes = {}, {}
  for index = 1, #spends do
    sizes[spends[index].group] = (sizes[spends[index].group] or 0) + 1
  end
  for index = 1, #spends do
    local s = spends[index]
    if is_shadow(s) then
      local most = spent[s.group] or passed
      spent[s.group] = (count > 1 or sizes[s.group] > 1) and spending(most, s) or most
    end
  end
  return spent
end

-- Of how many of `count` equal requests a spend is spent from, where `passed` of them may spend. One that is alone is asked
-- when it is spent from.
local function spent_of(count, passed, s, shadows, is_alone)
  if s.flags == ENFORCED then
    return passed
  elseif has(s.flags, CHARGE) then
    return count
  elseif shadows and is_shadow(s) then
    return shadows[s.group]
  elseif not is_alone and passed > 0 and has(s.flags, ANY_OF) then
    return (spending(passed, s))
  end
  return passed
end
