-- The values of the cells of a decision: read at once, changed in turn, and written when all is decided.

local ENFORCED, COUNTS_REFUSED = 1, 2
-- What a reservation changed is remembered for so long, and so is that it was cancelled.
local RESERVATION_MS = 5000
-- A spend as decide.lua describes it.
local SPEND = "<I2c1I1ddddddd"

local function has(flags, flag)
  return fmod(flags, 2 * flag) >= flag
end

-- Values by the number of their key, and of those that changed, when their key expires (0: as before).
local raws, changed = {}, {}
if readable > 1000 then
  for key = 1, readable do
    raws[key] = call("GET", KEYS[key])
  end
elseif readable > 0 then
  raws = call("MGET", unpack(KEYS, 1, readable))
end

local function become(key, after, expires_s)
  if after then
    raws[key] = after ~= "" and after
    changed[key] = expires_s or changed[key] or 0
  end
end
