-- The penalty of a rule whose limits come before it.

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
