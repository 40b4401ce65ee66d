-- What a call answers, spend by spend (see decide.lua).

local reply, told = {}, 0
local function tell(wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<ddd", wait, remaining, reset_after_us)
end

local function tell_admitted(admitted, wait, remaining, reset_after_us)
  told = told + 1
  reply[told] = to_bytes("<dddd", admitted, wait, remaining, reset_after_us)
end
