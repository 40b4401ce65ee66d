-- Decides requests first in, first out, each from all its cells or from none. Twin of `request.rs` and `fold.rs`.
--
-- KEYS     the cells, then one key per reservation
-- Items    requests: spends (2 bytes), mode (1 byte), reservation (2 bytes: the number of its key, or 0), how many equal
--          requests it stands for (4 bytes), when it was in doubt, in us (8-byte float; 0: it was not asked before,
--          infinite: it shall not be in doubt again), then each spend: key (2 bytes: its number), algorithm (a letter), flags
--          (1 byte), hits and the limit's six numbers (8-byte floats; of a concurrency limit the sixth is the number of
--          the lease's name in ARGV[2], or 0)
-- Modes    0 the whole request, 1 a part of one whose other parts are decided elsewhere, 2 a part of one that is refused
--          elsewhere, 3 a whole request that may have to be undone, 4 to be undone (cancel.lua)
-- Flags    1 enforced, 2 refused hits count; of a spend whose cost may be above what is left: 4 it goes into debt, 8 it always
--          spends, 16 it spends what is left (over.lua)
-- Reply    wait, remaining, reset_after_us of every spend, as 8-byte floats. Of a request that stands for several, what
--          the last of them is told, then how many the cell admitted, then what the last admitted one is told, and where
--          its cost may be above what is left, how many went over, and what the last of those is told. Of one that stands
--          for itself alone and has a reservation, what it is told, then what it is told if it does not pass
--          elsewhere. What is undone is told nothing. A request that is refused only while others hold some of what it
--          needs is not decided: it is told -0.5, now_us and how many of it pass, then what it is told if it cannot wait:
--          that it is refused, or of several with a reservation, how many each cell would admit. At the end now_us.
--
-- What an item with a reservation changes is remembered under its key for a while, so that it can be put back, once. If it
-- stands for several, all of them pass or nothing changes: the reply then says how many would have passed.

local PART, REFUSED_ELSEWHERE, CANCEL = 1, 2, 4
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
local function admits(most, letter, key, hits, a, b, c, d, e, f)
  local wait, remaining = look(letter, KEYS[key], raws[key], hits, 0, a, b, c, d, e, f)
  if wait < 0 then
    return 0, wait
  elseif hits == 0 or letter == "c" or letter == "k" then
    return most, wait
  elseif letter == "l" and c > 0 then
    return 1, wait
  end
  return min(1 + floor_div(remaining, hits), most), wait
end

-- How many of `most` equal requests spend here, one after another, and the wait of the first. Where they may go over, those
-- that fit do, and one more if not all is spent then.
local function spending(most, flags, letter, key, hits, a, b, c, d, e, f)
  if has(flags, CHARGE) then
    return most, 0
  end
  local fit, wait = admits(most, letter, key, hits, a, b, c, d, e, f)
  if flags < DEBT or fit == most or fit > 0 and letter == "l" and c > 0 then
    return fit, wait
  end
  local all_wait, remaining = look(letter, KEYS[key], raws[key], hits * fit, 0, a, b, c, d, e, f)
  return fit + (all_wait >= 0 and remaining > 0 and 1 or 0), all_wait
end

-- How many of `count` equal requests with these spends may spend, and whether any cell refuses some of them only as long as
-- others hold what they may put back. One such cell is enough, also where another refuses for certain: by the time that
-- nobody holds anything here, those have put back what they held too who took so little that they are not listed.
local function passing(count, spends, since, at)
  local passed, in_doubt = count, false
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    -- Where nothing can be in doubt, the first refusal is enough.
    if has(flags, ENFORCED) and not has(flags, CHARGE) and (passed > 0 or letter_at > 0) then
      local admitted, wait = spending(count, flags, letter, key, hits, a, b, c, d, e, f)
      in_doubt = in_doubt or letter_at > 0 and admitted < count and wait ~= -1 and may_yet_pass(key, since)
      passed = min(passed, admitted)
    end
  end
  return passed, in_doubt
end

-- Spends what `count` equal requests ask: what the last of them is told.
local function spend(count, letter, key, hits, a, b, c, d, e, f)
  if count > 1 and hits > 0 and letter ~= "c" and letter ~= "k" then
    local _, _, _, after, expires_s =
      decide(letter, KEYS[key], raws[key], hits * (count - 1), a, b, c, d, e, f)
    become(key, after, expires_s)
  end
  local wait, remaining, reset_after_us, after, expires_s =
    decide(letter, KEYS[key], raws[key], hits, a, b, c, d, e, f)
  become(key, after, expires_s)
  return wait, remaining, reset_after_us
end

local function note(count, flags, letter, key, hits, a, b, c, d, e)
  if count > 0 and has(flags, COUNTS_REFUSED) then
    become(key, note_refused(letter, KEYS[key], raws[key], hits, count, a, b, c, d, e))
  end
end

-- What a spend of the last of `count` equal requests is told if they do not pass: its own refusal, or what is left unspent.
local function look_unspent(count, flags, letter, key, hits, a, b, c, d, e, f)
  local noted = has(flags, COUNTS_REFUSED) and count or 0
  local wait, remaining, reset_after_us = look(letter, KEYS[key], raws[key], hits, noted, a, b, c, d, e, f)
  if has(flags, CAP) and (noted == 0 or letter ~= "l") then
    -- One hit is enough for it to pass.
    wait, remaining, reset_after_us = look(letter, KEYS[key], raws[key], 0, noted, a, b, c, d, e, f)
  elseif (wait >= 0 or has(flags, CAP)) and noted > 0 and letter == "l" then
    -- As many hits are noted as were asked for, whatever is looked for.
    wait, remaining, reset_after_us = sliding_log_look(KEYS[key], raws[key], now, 0, hits * noted, a, b, c, d, e)
  elseif wait >= 0 then
    wait, remaining, reset_after_us = look(letter, KEYS[key], raws[key], 0, noted, a, b, c, d, e, f)
  end
  return wait, remaining, reset_after_us
end

-- Lets a cell from the future, which a clock wrote that has since stepped back, be one of now.
local function rest(letter, key, a, b, c, d, e, f)
  if letter == "l" then
    become(key, sliding_log_rebase(KEYS[key], raws[key], now, d, e))
  elseif letter == "c" or letter == "k" then
    leases_tidy(KEYS[key], now, c)
  else
    local _, _, _, after, expires_s = decide(letter, KEYS[key], raws[key], 0, a, b, c, d, e, f)
    become(key, after, expires_s)
  end
end

-- The wait of who is refused: a short one where that is not for certain, and cannot wait to be.
local function soon_if_held(key, wait)
  if is_for_good and wait < -1 and held_since(key) then
    return HELD_WAIT
  end
  return wait
end

-- What the last of `count` refused is told, all of whom are noted where refused requests count.
local function refuse(count, flags, letter, key, hits, a, b, c, d, e, f)
  rest(letter, key, a, b, c, d, e, f)
  local wait, remaining, reset_after_us = look_unspent(count, flags, letter, key, hits, a, b, c, d, e, f)
  note(count, flags, letter, key, hits, a, b, c, d, e)
  return soon_if_held(key, wait), remaining, reset_after_us
end

-- When the lease of a spend would end; 0 if it is not held.
local function held_until(key, f)
  local until_us = tonumber(call("ZSCORE", KEYS[key], lease_name(f)) or 0)
  return until_us > now and until_us or 0
end

-- Whether the spend at `at` takes a lease again that is held.
local function is_renewed(at)
  local key, letter, _, _, _, _, _, _, _, f = from_bytes(SPEND, plan, at)
  return (letter == "c" or letter == "k") and f > 0 and held_until(key, f) > 0
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
local function trace(letter, key, before, times, until_us, c)
  local often = to_bytes("<I4", times)
  if letter == "l" then
    return "\3" .. often .. trace_of_log(KEYS[key])
  elseif until_us then
    return "\2" .. often .. to_bytes("<d", until_us) .. trace_of_log(KEYS[c])
  elseif letter == "c" or letter == "k" then
    return "\0" .. often .. trace_of_log(KEYS[c])
  elseif before ~= raws[key] then
    return "\1" .. often .. with_length(before) .. with_length(raws[key])
  end
  return "\0" .. often
end

-- Decides one spend of a request that passes its enforced cells (`passed` is 1) or does not: how often it spent, and what is
-- left.
local function decide_one(passed, is_reserved, flags, letter, key, hits, a, b, c, d, e, f)
  local wait, remaining, reset_after_us, unspent_wait, unspent, unspent_reset
  local goes_over = flags >= DEBT and
    (has(flags, CHARGE) or passed > 0 and look(letter, KEYS[key], raws[key], 0, 0, a, b, c, d, e, f) >= 0)
  if goes_over then
    if is_reserved then
      unspent_wait, unspent, unspent_reset = look_unspent(1, flags, letter, key, hits, a, b, c, d, e, f)
    end
    wait, remaining, reset_after_us, passed = spend_over(flags, letter, key, hits, a, b, c, d, e, f)
  elseif passed == 0 or flags >= DEBT then
    wait, remaining, reset_after_us = refuse(1, flags, letter, key, hits, a, b, c, d, e, f)
  else
    if is_reserved then
      unspent_wait, unspent, unspent_reset =
        look_unspent(1, flags, letter, key, hits, a, b, c, d, e, f)
    end
    wait, remaining, reset_after_us = spend(1, letter, key, hits, a, b, c, d, e, f)
    if wait < 0 and has(flags, COUNTS_REFUSED) then
      wait, remaining, reset_after_us = look_noted(letter, KEYS[key], raws[key], hits, 1, a, b, c, d, e)
      note(1, flags, letter, key, hits, a, b, c, d, e)
    end
    wait = soon_if_held(key, wait)
  end
  tell(wait, remaining, reset_after_us)
  if is_reserved then
    tell(unspent_wait or wait, unspent or remaining, unspent_reset or reset_after_us)
  end
  return wait < 0 and not goes_over and 0 or passed, remaining
end

-- Decides one spend of `count` equal requests of which `passed` may spend: how many it spent for (of one that is capped, see
-- over.lua), and what is left.
local function decide_fold(count, passed, flags, letter, key, hits, a, b, c, d, e, f)
  local spent, last_wait, last_remaining, last_reset = passed, nil, nil, nil
  if has(flags, CHARGE) then
    spent = count
  elseif passed > 0 and not has(flags, ENFORCED) then
    spent = spending(passed, flags, letter, key, hits, a, b, c, d, e, f)
  end
  local admitted, times = spent, spent
  if flags >= DEBT and spent > 0 then
    admitted = admits(spent, letter, key, hits, a, b, c, d, e, f)
  end
  if admitted > 0 then
    last_wait, last_remaining, last_reset = spend(admitted, letter, key, hits, a, b, c, d, e, f)
  end
  local wait, remaining, reset_after_us = last_wait, last_remaining, last_reset
  local over_wait, over_remaining, over_reset
  if admitted < spent then
    over_wait, over_remaining, over_reset, times =
      go_over(spent - admitted, flags, letter, key, hits, a, b, c, d, e, f)
    wait, remaining, reset_after_us, times = over_wait, over_remaining, over_reset, admitted + times
  end
  if spent < count then
    wait, remaining, reset_after_us = refuse(count - spent, flags, letter, key, hits, a, b, c, d, e, f)
  end
  tell(wait, remaining, reset_after_us)
  tell_admitted(admitted, last_wait or wait, last_remaining or remaining, last_reset or reset_after_us)
  if flags >= DEBT then
    tell_admitted(spent - admitted, over_wait or wait, over_remaining or remaining, over_reset or reset_after_us)
  end
  return times, over_remaining or last_remaining or remaining
end

-- Says of how many of `count` equal requests each would spend, where not all of them pass.
local function tell_how_many(count, spends, at)
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    tell(0, 0, 0)
    tell_admitted(spending(count, flags, letter, key, hits, a, b, c, d, e, f), 0, 0, 0)
    if flags >= DEBT then
      tell_admitted(0, 0, 0, 0)
    end
  end
end

-- Says that a request is in doubt, and what it is told if it cannot wait: that it is refused, and to come again soon.
local function tell_in_doubt(count, passed, mode, spends, is_reserved, at)
  is_for_good = true
  tell(IN_DOUBT, now, passed)
  if count > 1 and is_reserved and mode ~= REFUSED_ELSEWHERE then
    return tell_how_many(count, spends, at)
  end
  for _ = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    local wait, remaining, reset_after_us = look_unspent(count, flags, letter, key, hits, a, b, c, d, e, f)
    wait = soon_if_held(key, wait)
    tell(wait, remaining, reset_after_us)
    if count > 1 then
      tell_admitted(0, wait, remaining, reset_after_us)
      if flags >= DEBT then
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
local function hold_if_scarce(remaining, times, reservation, letter, key, hits, c)
  taken[key] = (taken[key] or 0) + hits * times
  if hits > 0 and times > 0 and (remaining < SCARCE * taken[key] + FEW or letter == "l" and c > 0) then
    hold(key, KEYS[reservation])
  end
end

local function decide_request(count, passed, spends, reservation, at)
  local traces = {}
  if reservation > 0 then
    log_traces = {}
  end
  for index = 1, spends do
    local key, letter, flags, hits, a, b, c, d, e, f
    key, letter, flags, hits, a, b, c, d, e, f, at = from_bytes(SPEND, plan, at)
    if letter == "l" then
      raws[key] = log_adopted(KEYS[key], raws[key], now, a, b, d, e)
    end
    local is_reserved = reservation > 0
    if is_reserved then
      rest(letter, key, a, b, c, d, e, f)
    end
    local before = raws[key]
    local until_us = is_reserved and f > 0 and (letter == "c" or letter == "k") and held_until(key, f)
    local times, remaining
    if count == 1 then
      times, remaining = decide_one(passed, is_reserved, flags, letter, key, hits, a, b, c, d, e, f)
    else
      times, remaining = decide_fold(count, passed, flags, letter, key, hits, a, b, c, d, e, f)
    end
    if is_reserved then
      hold_if_scarce(remaining, times, reservation, letter, key, hits, c)
      -- A lease that was not taken leaves no trace.
      until_us = hits > 0 and times > 0 and until_us
      times = hits > 0 and (has(flags, COUNTS_REFUSED) and count or times) or 0
      traces[index] = trace(letter, key, before, times, until_us, c)
    end
  end
  return traces
end

local records = {}
for _ = 1, items do
  local spends, mode, reservation, count, since = from_bytes("<I2I1I2I4d", plan, at)
  at, is_for_good = at + 17, since == math.huge
  if mode == CANCEL then
    cancel(spends, KEYS[reservation], at)
  else
    -- One that was cancelled before it came must not spend any more.
    local cancelled, passed, in_doubt = reservation > 0 and call("EXISTS", KEYS[reservation]) == 1, 0, false
    -- One limit alone decides in one go: its refusal changes nothing by itself.
    local is_alone = mode ~= PART and spends == 1 and count == 1
    if mode == REFUSED_ELSEWHERE then
      _, in_doubt = passing(1, spends, since, at)
    elseif not cancelled then
      if not is_alone or letter_at > 0 then
        passed, in_doubt = passing(count, spends, since, at)
      end
      if is_alone then
        in_doubt = in_doubt and not is_renewed(at)
        passed = in_doubt and 0 or 1
      end
    end
    if in_doubt then
      tell_in_doubt(count, passed, mode, spends, reservation > 0, at)
    elseif reservation > 0 and count > 1 and mode ~= REFUSED_ELSEWHERE and passed < count then
      tell_how_many(count, spends, at)
    else
      local traces = decide_request(count, passed, spends, reservation, at)
      if reservation > 0 and not cancelled then
        records[reservation] = to_bytes("<d", now) .. table.concat(traces)
      end
    end
  end
  at = at + 60 * spends
end

for key, expires_s in pairs(changed) do
  keep(KEYS[key], raws[key], expires_s > 0 and expires_s)
end
for key, record in pairs(records) do
  call("SET", KEYS[key], record, "PX", time_is_given and TEST_TTL_MS or RESERVATION_MS)
end
reply[told + 1] = to_bytes("<d", now)
return table.concat(reply)
