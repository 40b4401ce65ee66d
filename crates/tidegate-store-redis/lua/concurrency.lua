-- Concurrency: how many requests are being served at once, as leases that end by themselves. Twin of `concurrency.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua), [2] the names of leases
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  latest_us (7 bytes): when the last lease ends, expires_s (5), width (1), then the leases, those that end first
--        in front: name (8 bytes; zero for a refused request that counts all the same), end (`width` bytes, packed.lua)
-- Limit  limit, ttl_us, width
--
-- A limit of very many keeps its leases in a sorted set instead (concurrency_large.lua). A limit that was very large and
-- is no more finds such a set, and packs it.

may_be_set = true
local LEASES_HEADER = 13
local NAMELESS = rep("\0", 8)

-- The name of a lease that the plan gives by its number.
local function lease_name(number)
  return sub(ARGV[2], 8 * number - 7, 8 * number)
end

-- Packs leases, given as a list of names and ends in turn, those that end first in front.
local function leases_pack(names_and_ends, width)
  local count = #names_and_ends / 2
  local latest, packed = tonumber(names_and_ends[2 * count]), {}
  for index = 1, count do
    local low = packed_low(0, tonumber(names_and_ends[2 * index]) - latest, width)
    packed[index] = sub(names_and_ends[2 * index - 1], 1, 8) .. to_bytes(packed_form(width), low)
  end
  return table.concat(packed), latest
end

-- The end of the `index`th lease.
local function lease_end(leases, index, count, latest, width)
  local form, size = packed_form(width), 8 + width
  local last_low = from_bytes(form, leases, (count - 1) * size + 9)
  return latest - packed_gap(last_low, from_bytes(form, leases, (index - 1) * size + 9), width)
end

-- The leases, how many, when the last ends, their width (at least `width`), and the key's expiry.
local function leases_open(key, raw, width)
  if not raw then
    if call("TYPE", key).ok ~= "zset" then
      return "", 0, 0, width, 0
    end
    local leases, latest = leases_pack(call("ZRANGE", key, 0, -1, "WITHSCORES"), 7)
    return leases, #leases / 15, latest, 7, 0
  end
  local latest, expires_s, its_width = from_bytes("<I7I5I1", raw)
  local leases = sub(raw, LEASES_HEADER + 1)
  local count = #leases / (8 + its_width)
  if its_width >= width then
    return leases, count, latest, its_width, expires_s
  end
  local names_and_ends = {}
  for index = 1, count do
    local name_at = (index - 1) * (8 + its_width) + 1
    names_and_ends[2 * index - 1] = sub(leases, name_at, name_at + 7)
    names_and_ends[2 * index] = lease_end(leases, index, count, latest, its_width)
  end
  leases = leases_pack(names_and_ends, width)
  return leases, count, latest, width, expires_s
end

local function leases_write(leases, latest, expires_s, width, now)
  if leases == "" then
    return ""
  end
  local later_s
  if latest > expires_s * 1000000 then
    later_s = expiry_beyond(latest, now)
  end
  return to_bytes("<I7I5I1", latest, later_s or expires_s, width) .. leases, later_s
end

-- How many have ended at `now`.
local function leases_ended(leases, count, latest, width, now)
  local low, high = 0, count
  if count > 0 and lease_end(leases, 1, count, latest, width) > now then
    return 0
  end
  while low < high do
    local middle = floor_div(low + high, 2)
    if lease_end(leases, middle + 1, count, latest, width) <= now then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function leases_look(leases, count, latest, now, hits, limit, ttl_us, width)
  local gone = leases_ended(leases, count, latest, width, now)
  local live = count - gone
  -- A lease that outlives `ttl_us` was written by a clock that has since stepped back, or under a longer one.
  local reset_after_us = live > 0 and min(latest - now, ttl_us) or 0
  local remaining = limit - live
  if remaining > 0 then
    if hits == 0 then
      return 0, remaining, reset_after_us
    end
    return 0, remaining - 1, ttl_us
  elseif limit == 0 then
    return -1, 0, reset_after_us
  end
  local first_out = lease_end(leases, gone + live - limit + 1, count, latest, width)
  return -2 - min(first_out - now, ttl_us), 0, reset_after_us
end

-- Drops what has ended, and shortens what outlives `ttl_us`: the leases, how many, when the last ends, whether changed.
local function leases_tidy(leases, count, latest, now, ttl_us, width)
  local gone, size = leases_ended(leases, count, latest, width, now), 8 + width
  if gone == count then
    return "", 0, 0, gone > 0
  end
  local most = min(now + ttl_us, LATEST)
  if latest <= most then
    return sub(leases, gone * size + 1), count - gone, latest, gone > 0
  end
  local last_low = from_bytes(packed_form(width), leases, (count - 1) * size + 9)
  local low = to_bytes(packed_form(width), packed_low(last_low, most - latest, width))
  local shortened, index = {}, count
  while index > gone and lease_end(leases, index, count, latest, width) > most do
    local name_at = (index - 1) * size + 1
    shortened[index - gone] = sub(leases, name_at, name_at + 7) .. low
    index = index - 1
  end
  for kept = gone + 1, index do
    shortened[kept - gone] = sub(leases, (kept - 1) * size + 1, kept * size)
  end
  return table.concat(shortened), count - gone, most, true
end

-- Where the lease of that name begins, if it is there.
local function lease_position(leases, name, width)
  local from, size = 1, 8 + width
  while true do
    local found = string.find(leases, name, from, true)
    if not found or fmod(found - 1, size) == 0 then
      return found
    end
    from = found + 1
  end
end

local function leases_without(leases, count, latest, position, width)
  local size = 8 + width
  if position == (count - 1) * size + 1 then
    latest = count > 1 and lease_end(leases, count - 1, count, latest, width) or 0
  end
  return sub(leases, 1, position - 1) .. sub(leases, position + size), count - 1, latest
end

-- Appends a lease that ends after `ttl_us`: after a tidy, no other ends later.
local function leases_append(leases, count, latest, name, now, ttl_us, width)
  local ends_us, low = min(now + ttl_us, LATEST), 0
  if count > 0 then
    local last_low = from_bytes(packed_form(width), leases, (count - 1) * (8 + width) + 9)
    low = packed_low(last_low, ends_us - latest, width)
  end
  return leases .. name .. to_bytes(packed_form(width), low), count + 1, ends_us
end

local function concurrency_look(key, raw, now, hits, limit, ttl_us, width)
  local leases, count, latest, width = leases_open(key, raw, width)
  return leases_look(leases, count, latest, now, hits, limit, ttl_us, width)
end

-- Takes a lease if there is room; taking it again renews it.
local function concurrency_acquire(key, raw, now, hits, name, limit, ttl_us, width)
  local leases, count, latest, width, expires_s = leases_open(key, raw, width)
  local tidied
  leases, count, latest, tidied = leases_tidy(leases, count, latest, now, ttl_us, width)
  local others, other_count, other_latest = leases, count, latest
  local held = lease_position(leases, name, width)
  if held then
    others, other_count, other_latest = leases_without(leases, count, latest, held, width)
  end
  local wait, remaining, reset_after_us =
    leases_look(others, other_count, other_latest, now, hits, limit, ttl_us, width)
  if wait >= 0 and hits > 0 then
    others, other_count, other_latest = leases_append(others, other_count, other_latest, name, now, ttl_us, width)
    return wait, remaining, reset_after_us, leases_write(others, other_latest, expires_s, width, now)
  elseif tidied then
    return wait, remaining, reset_after_us, leases_write(leases, latest, expires_s, width, now)
  end
  return wait, remaining, reset_after_us
end

local function concurrency_renew(key, raw, now, name, limit, ttl_us, width)
  local leases, count, latest, width, expires_s = leases_open(key, raw, width)
  leases, count, latest = leases_tidy(leases, count, latest, now, ttl_us, width)
  local held = lease_position(leases, name, width)
  if held then
    leases, count, latest = leases_without(leases, count, latest, held, width)
    leases, count, latest = leases_append(leases, count, latest, name, now, ttl_us, width)
  end
  return held, leases_write(leases, latest, expires_s, width, now)
end

local function concurrency_release(key, raw, now, name, limit, ttl_us, width)
  local leases, count, latest, width, expires_s = leases_open(key, raw, width)
  leases, count, latest = leases_tidy(leases, count, latest, now, ttl_us, width)
  local held = lease_position(leases, name, width)
  if held then
    leases, count, latest = leases_without(leases, count, latest, held, width)
  end
  return held, leases_write(leases, latest, expires_s, width, now)
end

-- Notes `times` refused requests as leases that nobody can release. The newest `limit` of those are all that need
-- remembering.
local function concurrency_note_refused(key, raw, now, times, limit, ttl_us, width)
  local leases, count, latest, width, expires_s = leases_open(key, raw, width)
  leases, count, latest = leases_tidy(leases, count, latest, now, ttl_us, width)
  local nameless, size = {}, 8 + width
  for index = 1, count do
    local name_at = (index - 1) * size + 1
    if sub(leases, name_at, name_at + 7) == NAMELESS then
      nameless[#nameless + 1] = name_at
    end
  end
  local most = max(limit, 1)
  local added = min(times, most)
  for oldest = #nameless + added - most, 1, -1 do
    leases, count, latest = leases_without(leases, count, latest, nameless[oldest], width)
  end
  for _ = 1, added do
    leases, count, latest = leases_append(leases, count, latest, NAMELESS, now, ttl_us, width)
  end
  return leases_write(leases, latest, expires_s, width, now)
end
