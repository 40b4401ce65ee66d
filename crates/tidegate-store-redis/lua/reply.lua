-- What a call is asked and answers, spend by spend (see decide.lua).

local WHOLE, PART, REFUSED_ELSEWHERE, WHOLE_FOR_NOW, CANCEL = 0, 1, 2, 3, 4

local reply, told = {}, 0
local function tell(wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<ddd", wait, remaining, reset_after_us)
end

local function tell_admitted(admitted, wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<dddd", admitted, wait, remaining, reset_after_us)
end
