-- Decides requests first in, first out, each from all its cells or from none. Twin of `request.rs` and `fold.rs`.
--
-- KEYS     the cells, then one key per reservation
-- Items    requests: spends (2 bytes), mode (1 byte), reservation (2 bytes: the number of its key, or 0), how many equal
--          requests it stands for (4 bytes), when it was in doubt, in us (8-byte float; 0: it was not asked before,
--          infinite: it shall not be in doubt again), then each spend: key (2 bytes: its number), algorithm (a letter), flags
--          (1 byte), hits and the limit's six numbers (8-byte floats; of a concurrency limit the sixth is the number of
--          the lease's name in ARGV[2], or 0), the number of its rule in the request (2 bytes)
-- Modes    0 the whole request, 1 a part of one whose other parts are decided elsewhere, 2 a part of one that is refused
--          elsewhere, 3 a whole request that may have to be undone, 4 to be undone (cancel.lua)
-- Flags    1 enforced, 2 refused hits count (of a penalty: it is put back), 4 any of these must pass; where neither 1 nor 4, of
--          a shadow rule; of a spend whose cost may be above what is left: 8 it goes into debt, 16 it always spends, 32 it
--          spends what is left (over.lua); 64 the penalty of a rule whose limits come before it
-- Reply    an outcome for each spend: wait, remaining, reset_after_us, as 8-byte floats; at the end now_us. Further:
--            several equal requests: the outcome of the last, the number admitted, the outcome of the last admitted; of a
--            penalty, or where the cost may be above what is left: the number that went over, and the outcome of the last
--            single request with a reservation: its outcome, then its outcome if another part of it is refused
--            undone request: nothing
--            refused only because of holds: not decided. -0.5, now_us and how many equal ones pass; then the outcomes if it
--            cannot wait: its refusal, or of several with a reservation, how many each cell would admit
--
-- The changes of an item with a reservation are recorded under its key for a while, so that they can be put back, once. Of
-- several equal requests all pass or nothing changes: the reply then has the number that would have passed.

local WHOLE, PART, REFUSED_ELSEWHERE, WHOLE_FOR_NOW, CANCEL = 0, 1, 2, 3, 4
-- Whether the request must be decided, in doubt or not.
local is_for_good = false

local reply, told = {}, 0
local function tell(wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<ddd", wait, remaining, reset_after_us)
end

local function tell_admitted(admitted, wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<dddd", admitted, wait, remaining, reset_after_us)
end

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

-- When the lease of a spend would end; 0 if it is not held.
local function held_until(s)
  local until_us = tonumber(call("ZSCORE", KEYS[s.key], lease_name(s.f)) or 0)
  return until_us > now and until_us or 0
end

-- Whether a spend takes a lease again that is held.
local function is_renewed(s)
  return (s.letter == "c" or s.letter == "k") and s.f > 0 and held_until(s) > 0
end

-- A value with its length before it.
local function with_length(value)
  value = value or ""
  return to_bytes("<I4", #value) .. value
end

-- What entering hits changed in a log: "\0" nothing, "\1" then how many entries counted before (4 bytes), the newest of
-- them (8-byte float), how many count after (4), whether what was pushed out follows (1), and that.
local function trace_of_log(key)
  local log = log_traces and log_traces[key]
  if not log then
    return "\0"
  end
  local kept = log.dropped and 1 or 0
  return "\1" .. to_bytes("<I4dI4I1", log.count, log.newest, log.after, kept) .. with_length(log.dropped)
end

-- What a spend changed, and how often (4 bytes): "\0" nothing, "\1" then the value before and after, "\2" a lease, then
-- when it would have ended had it not been taken again (8-byte float; 0 if it was not held), "\3" a log, see above. What
-- was noted of a refused request beside leases follows in either case.
local function trace(s, before, times, until_us)
  local often = to_bytes("<I4", times)
  if s.letter == "l" then
    return "\3" .. often .. trace_of_log(KEYS[s.key])
  elseif until_us then
    return "\2" .. often .. to_bytes("<d", until_us) .. trace_of_log(KEYS[s.c])
  elseif s.letter == "c" or s.letter == "k" then
    return "\0" .. often .. trace_of_log(KEYS[s.c])
  elseif before ~= raws[s.key] then
    return "\1" .. often .. with_length(before) .. with_length(raws[s.key])
  end
  return "\0" .. often
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

-- Decides one spend of a request whose rule lets it spend (`passed` is 1) or does not: how often it spent, and what is left.
local function decide_one(passed, is_reserved, s, blamed)
  local wait, remaining, reset_after_us, fitted, unspent_wait, unspent, unspent_reset
  local goes_over = s.flags >= DEBT and (has(s.flags, CHARGE) or passed > 0 and look_at(s, 0, 0) >= 0)
  local spends = goes_over or passed > 0 and s.flags < DEBT
  if spends and is_reserved then
    unspent_wait, unspent, unspent_reset = look_unspent(1, s)
  end
  if goes_over then
    wait, remaining, reset_after_us, passed = spend_over(s)
  elseif not spends then
    wait, remaining, reset_after_us, fitted = refuse(1, s)
  else
    wait, remaining, reset_after_us = spend(1, s)
    if wait < 0 and has(s.flags, COUNTS_REFUSED) then
      wait, remaining, reset_after_us = look_at(s, s.hits, 1)
      note(1, s)
    end
  end
  local times = wait < 0 and not goes_over and 0 or passed
  if spends then
    fitted = wait >= 0
  end
  wait = blame(blamed, s, wait, fitted, 0, goes_over)
  tell(wait, remaining, reset_after_us)
  if is_reserved then
    tell(unspent_wait or wait, unspent or remaining, unspent_reset or reset_after_us)
  end
  return times, remaining
end

-- Decides one spend of `count` equal requests of which `spent` may spend: how many it spent for (of one that is capped, see
-- over.lua), and what is left.
local function decide_fold(count, spent, s, blamed)
  local last_wait, last_remaining, last_reset
  local admitted, times = spent, spent
  if s.flags >= DEBT and spent > 0 then
    admitted = admits(spent, s)
  end
  if admitted > 0 then
    last_wait, last_remaining, last_reset = spend(admitted, s)
  end
  local wait, remaining, reset_after_us = last_wait, last_remaining, last_reset
  local over_wait, over_remaining, over_reset
  if admitted < spent then
    over_wait, over_remaining, over_reset, times = go_over(spent - admitted, s)
    wait, remaining, reset_after_us, times = over_wait, over_remaining, over_reset, admitted + times
  end
  local fitted = wait and wait >= 0
  if spent < count then
    wait, remaining, reset_after_us, fitted = refuse(count - spent, s)
  end
  wait = blame(blamed, s, wait, fitted, has(s.flags, CAP) and spent or admitted, spent == count)
  tell(wait, remaining, reset_after_us)
  tell_admitted(admitted, last_wait or wait, last_remaining or remaining, last_reset or reset_after_us)
  if s.flags >= DEBT then
    tell_admitted(spent - admitted, over_wait or wait, over_remaining or remaining, over_reset or reset_after_us)
  end
  return times, over_remaining or last_remaining or remaining
end

-- Looks at a penalty, and starts it with the first of `count` equal requests that its rule refuses, if it does: how often it
-- started.
local function decide_penalty(count, is_reserved, s, first)
  rest(s)
  local wait, remaining, reset_after_us = look_at(s, 0, 0)
  local starts, admitted = wait >= 0 and first, wait >= 0 and count or 0
  local over_wait, over_remaining, over_reset = wait, remaining, reset_after_us
  local last_wait, last_remaining, last_reset = wait, remaining, reset_after_us
  if starts then
    spend_hits(s, 1)
    admitted = first
    last_wait, last_remaining, last_reset = look_at(s, 0, 0)
    -- It is spent from like a debt.
    over_wait, over_remaining, over_reset = last_wait, -1 - last_remaining, last_reset
    if first + 1 >= count then
      last_remaining = over_remaining
    end
  end
  tell(last_wait, last_remaining, last_reset)
  if count > 1 then
    if admitted == 0 then
      wait, remaining, reset_after_us = last_wait, last_remaining, last_reset
    end
    tell_admitted(admitted, wait, remaining, reset_after_us)
    tell_admitted(starts and 1 or 0, over_wait, over_remaining, over_reset)
  elseif is_reserved then
    tell(last_wait, last_remaining, last_reset)
  end
  return starts and 1 or 0
end

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

-- Decides `count` equal requests of which `passed` may spend: what each spend changed.
local function decide_request(count, passed, spends, reservation, is_alone)
  local traces, blamed, is_reserved, shadows = {}, {}, reservation > 0, nil
  if is_reserved then
    log_traces = {}
  end
  for index = 1, #spends do
    local s = spends[index]
    if is_reserved then
      rest(s)
    end
    local before = raws[s.key]
    local until_us = is_reserved and s.f > 0 and (s.letter == "c" or s.letter == "k") and held_until(s)
    local times, remaining
    if s.flags >= PENALTY then
      times = decide_penalty(count, is_reserved, s, blamed[s.group])
    else
      -- Before the first limit of a shadow rule is spent from, all of them are asked. One limit alone needs no look.
      if not shadows and s.flags ~= ENFORCED and (count > 1 or #spends > 1) and is_shadow(s) then
        shadows = shadows_of(count, passed, spends)
      end
      local spent = spent_of(count, passed, s, shadows, is_alone)
      if count == 1 then
        times, remaining = decide_one(spent, is_reserved, s, blamed)
      else
        times, remaining = decide_fold(count, spent, s, blamed)
      end
      if is_reserved then
        hold_if_scarce(remaining, times, reservation, s)
        -- A lease that was not taken leaves no trace.
        until_us = s.hits > 0 and times > 0 and until_us
        times = s.hits > 0 and (has(s.flags, COUNTS_REFUSED) and count or times) or 0
      end
    end
    if is_reserved then
      traces[index] = trace(s, before, times, until_us)
    end
  end
  return traces
end

local records = {}
for _ = 1, items do
  local size, mode, reservation, count, since = from_bytes("<I2I1I2I4d", plan, at)
  local spends
  spends, at = spends_at(size, at + 17)
  is_for_good = since == math.huge
  if mode == CANCEL then
    cancel(spends, KEYS[reservation])
  else
    -- One that was cancelled before it came must not spend any more.
    local cancelled, passed, in_doubt = reservation > 0 and call("EXISTS", KEYS[reservation]) == 1, 0, false
    -- One limit alone decides in one go: its refusal changes nothing by itself.
    local is_alone = mode ~= PART and size == 1 and count == 1
    if mode == REFUSED_ELSEWHERE then
      _, in_doubt = passing(1, spends, since, false)
    elseif not cancelled then
      if not is_alone or letter_at > 0 then
        passed, in_doubt = passing(count, spends, since, mode == WHOLE or mode == WHOLE_FOR_NOW)
      end
      if is_alone then
        in_doubt = in_doubt and not is_renewed(spends[1])
        passed = in_doubt and 0 or 1
      end
    end
    if in_doubt then
      tell_in_doubt(count, passed, mode, spends, reservation > 0)
    elseif reservation > 0 and count > 1 and mode ~= REFUSED_ELSEWHERE and passed < count then
      tell_how_many(count, spends)
    else
      local traces = decide_request(count, passed, spends, reservation, is_alone)
      if reservation > 0 and not cancelled then
        records[reservation] = to_bytes("<d", now) .. table.concat(traces)
      end
    end
  end
end

for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
for key, record in pairs(records) do
  call("SET", KEYS[key], record, "PX", time_is_given and TEST_TTL_MS or RESERVATION_MS)
end
reply[told + 1] = to_bytes("<d", now)
return table.concat(reply)
