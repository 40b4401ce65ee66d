-- Moments in ascending order, packed into few bytes each: what sliding log and concurrency share.
--
-- Only the last moment is kept whole. Each entry holds the low bytes of its moment, and lies before the last one by the
-- difference of the two, for all entries lie within one window, which those bytes can tell apart. (The low bytes may be
-- off by a constant: moving all moments back, after a clock stepped back, moves the last one alone.)

local function packed_form(width)
  return width == 4 and "<I4" or width == 5 and "<I5" or width == 6 and "<I6" or "<I7"
end

-- How many moments the low bytes tell apart. Seven bytes could tell more, but sums of two must stay exact.
local function packed_range(width)
  return width < 7 and 256 ^ width or 4503599627370496
end

-- How far `low` lies before `last_low`.
local function packed_gap(last_low, low, width)
  if low > last_low then
    return last_low - low + packed_range(width)
  end
  return last_low - low
end

-- The low bytes of a moment that is `gap` after the one with `last_low`, or before it where `gap` is negative.
local function packed_low(last_low, gap, width)
  local range = packed_range(width)
  local low = last_low + fmod(gap, range)
  if low < 0 then
    return low + range
  elseif low >= range then
    return low - range
  end
  return low
end

-- `count` equal entries, by doubling: Lua's own `rep` copies byte by byte.
local function packed_rep(entry, count)
  local entries, have = entry, 1
  while 2 * have <= count do
    entries, have = entries .. entries, 2 * have
  end
  return have == count and entries or entries .. sub(entries, 1, (count - have) * #entry)
end
