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
