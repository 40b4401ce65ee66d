-- Sliding log: the time of every admitted hit, so never more than `limit` in any window. Twin of `sliding_log.rs`.
--
-- KEYS   one per cell; what it holds is `raw`
-- ARGV   [1] the plan: `now`, `hits` and the limit below (prelude.lua, decide.lua)
-- Reply  wait, remaining, reset_after_us (prelude.lua)
-- Units  microseconds where a name ends in _us, seconds in _s, else hits
-- Value  newest_us (7 bytes), expires_s (5), head (4): how many of the oldest entries no longer count, then the entries,
--        `width` bytes each (packed.lua)
-- Limit  limit, window_us, min_interval_us, width, large (1 or 0)
--
-- A value of 15 bytes is a sliding window's, which a limit left that was one. The drivers let it become a log (`log_adopted`)
-- before anything else.
--
-- A large log is read and written in place, a few entries at a time, and rewritten when half of it has gone. It is not
-- among the readable keys, and `raw` is nil.

local LOG_HEADER = 16
-- The bytes of a sliding window's value: fewer than a log's.
local OF_A_WINDOW = 15
-- More bytes of entries than these that a reservation pushes out are not kept to be put back.
local MOST_KEPT, MOST_EXPIRED_KEPT = 16384, 256
-- Entries that are appended at once.
local MOST_AT_ONCE = 1024

-- What a sliding window counted, as a log: what was left of the previous window as of the start of this one, the current hits as
-- of now. False if nothing counts any more.
local function log_of_window(raw, now, limit, window_us, width)
  local its_start, newer, previous = from_bytes("<I7I4I4", raw)
  local start, older = now - fmod(now, window_us), 0
  if its_start < start then
    previous = min(its_start + window_us, LATEST) == start and newer or 0
    newer = 0
  end
  if previous > 0 then
    -- The finest ticks with which `previous` times their number is exact.
    local tick_us = ceil_div(window_us, floor_div(LATEST, previous))
    local ticks = ceil_div(window_us, tick_us)
    older = ceil_div(previous * (ticks - floor_div(now - start, tick_us)), ticks)
  end
  newer = min(newer, limit)
  older = min(older, limit - newer)
  if newer + older == 0 then
    return false
  end
  local form, newest = packed_form(width), newer > 0 and now or start
  return to_bytes("<I7I5I4", newest, 0, 0) ..
    (older > 0 and packed_rep(to_bytes(form, packed_low(0, start - newest, width)), older) or "") ..
    (newer > 0 and packed_rep(to_bytes(form, 0), newer) or "")
end

-- Lets a value that a sliding window left become a log, and writes it: what a log is told depends on when it did. The key
-- expires no sooner than its entries. What `raw` is from here on.
local function log_adopted(key, raw, now, limit, window_us, width, large)
  local left = raw
  if large == 1 then
    left = call("STRLEN", key) == OF_A_WINDOW and call("GET", key)
  end
  if not left or #left ~= OF_A_WINDOW then
    return raw
  end
  left = log_of_window(left, now, limit, window_us, width)
  keep(key, left)
  return large ~= 1 and left
end

-- How many entries there are, and the numbers of the header.
local function log_open(key, raw, width, large)
  local length
  if large == 1 then
    length = call("STRLEN", key)
    raw = length > 0 and call("GETRANGE", key, 0, LOG_HEADER - 1)
  else
    length = raw and #raw
  end
  if not raw then
    return 0, 0, 0, 0
  end
  local newest, expires_s, head = from_bytes("<I7I5I4", raw)
  return (length - LOG_HEADER) / width - head, newest, expires_s, head
end

-- The low bytes of the `index`th entry that counts, from 1.
local function log_low(key, raw, head, index, width)
  local offset = LOG_HEADER + (head + index - 1) * width
  if raw then
    return from_bytes(packed_form(width), raw, offset + 1)
  end
  return (from_bytes(packed_form(width), call("GETRANGE", key, offset, offset + width - 1)))
end

-- How many entries are at or before `moment`.
local function log_count_until(key, raw, count, newest, head, width, moment)
  if count == 0 or newest <= moment then
    return count
  end
  local last_low = log_low(key, raw, head, count, width)
  local low, high, probe = 0, count - 1, 0
  while low < high do
    local gap = packed_gap(last_low, log_low(key, raw, head, probe + 1, width), width)
    if newest - gap <= moment then
      low = probe + 1
    else
      high = probe
    end
    -- Few have gone since the last hit: strides from the oldest on find them sooner than halving does.
    probe = min(2 * low, floor_div(low + high, 2))
  end
  return low
end

-- How many of the oldest entries, moved back by `ahead`, have left the window.
local function log_expired(key, raw, count, newest, head, width, now, window_us, ahead)
  if now < window_us then
    return 0
  end
  return log_count_until(key, raw, count, newest, head, width, min(now - window_us + ahead, LATEST))
end

-- The log at `now` once `added` more hits have been entered, of which the newest `limit` are kept: how many are live, and
-- what it takes to tell when they leave.
local function log_read(key, raw, now, added, limit, window_us, width, large)
  local count, newest, _, head = log_open(key, raw, width, large)
  -- After the clock stepped back, entries from its future count as if they had just happened, the others keeping their
  -- distance to them.
  local ahead = max(newest - now, 0)
  local gone = log_expired(key, raw, count, newest, head, width, now, window_us, ahead)
  added = min(added, limit)
  if added > 0 then
    gone = min(max(gone, count + added - limit), count)
  end
  return {
    key = key, raw = raw, width = width, now = now, window_us = window_us, count = count, head = head,
    newest = newest - ahead, ahead = ahead, gone = gone, kept = count - gone, live = count - gone + added,
  }
end

-- How long until the `index`th live entry, from 1, leaves the window.
local function log_leaves_in(log, index)
  if index > log.kept then
    return log.window_us
  end
  log.last_low = log.last_low or log_low(log.key, log.raw, log.head, log.count, log.width)
  local low = log_low(log.key, log.raw, log.head, log.gone + index, log.width)
  local entered = max(log.newest - packed_gap(log.last_low, low, log.width), 0)
  return max(log.window_us - (log.now - entered), 0)
end

-- What `hits` are told once `noted` more have been entered. Changes nothing.
local function sliding_log_look(key, raw, now, hits, noted, limit, window_us, min_interval_us, width, large)
  local log = log_read(key, raw, now, noted, limit, window_us, width, large)
  local live = log.live
  local since_newest = live > log.kept and 0 or now - log.newest
  local remaining = max(limit - live, 0)
  local reset_after_us = live > 0 and max(window_us - since_newest, 0) or 0
  local wanted = max(hits, 1)
  if wanted > limit then
    return -1, remaining, reset_after_us
  end
  -- The hits that must leave the window first: all but the newest `limit - wanted`.
  local in_the_way, retry_after_us = live + wanted - limit, 0
  if in_the_way > 0 then
    retry_after_us = log_leaves_in(log, in_the_way)
  end
  if live > 0 then
    retry_after_us = max(retry_after_us, min_interval_us - since_newest)
  end
  if retry_after_us > 0 then
    return -2 - retry_after_us, remaining, reset_after_us
  elseif hits == 0 then
    return 0, remaining, reset_after_us
  end
  return 0, remaining - wanted, window_us
end

-- Lets a log from the future, which a clock wrote that has since stepped back, be one of now. Its key ends as much earlier.
local function sliding_log_rebase(key, raw, now, width, large)
  local _, newest, expires_s, head = log_open(key, raw, width, large)
  if newest <= now then
    return
  end
  local ahead_s = floor_div(newest - now, 1000000)
  local earlier_s = ahead_s > 0 and expires_s - ahead_s or nil
  local header = to_bytes("<I7I5I4", now, earlier_s or expires_s, head)
  if large == 1 then
    call("SETRANGE", key, 0, header)
    if earlier_s and not time_is_given then
      call("EXPIREAT", key, earlier_s)
    end
    return
  end
  return header .. sub(raw, LOG_HEADER + 1), earlier_s
end

-- Remembers what entering changes: how many entries there were before, the newest of them, and those that it drops. Many
-- that had expired need not be put back.
local function log_remember(key, raw, count, newest, head, expired, gone, width)
  expired = expired * width > MOST_EXPIRED_KEPT and expired or 0
  local trace = log_traces[key]
  if not trace then
    trace = { count = count - expired, newest = newest, dropped = "" }
    log_traces[key] = trace
  end
  local size = (gone - expired) * width
  if trace.dropped and #trace.dropped + size > MOST_KEPT then
    trace.dropped = nil
  elseif trace.dropped and size > 0 then
    local from = LOG_HEADER + (head + expired) * width
    trace.dropped = trace.dropped ..
      (raw and sub(raw, from + 1, from + size) or call("GETRANGE", key, from, from + size - 1))
  end
  return trace
end

-- Appends `added` equal entries, a few pages at a time: Lua pays for every page of a long string anew.
local function log_append(key, entry, added)
  while added > 0 do
    local some = min(added, MOST_AT_ONCE)
    local entries = packed_rep(entry, some)
    repeat
      call("APPEND", key, entries)
      added = added - some
    until added < some
  end
end

-- Writes a large log in place: `added` entries are appended, and the first `head` no longer count.
local function log_write_large(key, count, newest, expires_s, later_s, head, entry, added, live, width)
  local header = to_bytes("<I7I5I4", newest, later_s or expires_s, head)
  if live == 0 then
    call("DEL", key)
    return
  elseif count == 0 then
    keep(key, header, later_s)
  elseif head > 1000 and head > live then
    local kept = call("GETRANGE", key, LOG_HEADER + head * width, -1)
    keep(key, to_bytes("<I7I5I4", newest, later_s or expires_s, 0) .. kept, later_s)
  else
    call("SETRANGE", key, 0, header)
    if later_s and not time_is_given then
      call("EXPIREAT", key, later_s)
    end
  end
  log_append(key, entry, added)
end

-- Enters `hits` whether or not they fit; the newest `limit` are all that need remembering. They are of `age_us` ago (now where
-- that is nil), or of the newest entry if that is later: entries are in order.
local function sliding_log_enter(key, raw, now, hits, limit, window_us, min_interval_us, width, large, age_us)
  local count, newest, expires_s, head = log_open(key, raw, width, large)
  newest = min(newest, now)
  local expired = log_expired(key, raw, count, newest, head, width, now, window_us, 0)
  local gone, added = expired, min(hits, limit)
  if added > 0 then
    gone = min(max(gone, count + added - limit), count)
  end
  local live = count - gone + added
  if log_traces then
    log_remember(key, raw, count, newest, head, expired, gone, width).after = live
  end
  if live == 0 then
    if large == 1 then
      log_write_large(key, count, newest, expires_s, nil, head, nil, 0, 0, width)
      return
    end
    return ""
  end
  local entry
  if added > 0 then
    local low, entered = 0, max(now - (age_us or 0), newest)
    if count > 0 then
      low = packed_low(log_low(key, raw, head, count, width), entered - newest, width)
    end
    entry, newest = to_bytes(packed_form(width), low), entered
  end
  local later_s
  local beyond_us = expires_s * 1000000 - newest - window_us
  if beyond_us < 0 or beyond_us > TOO_LATE_US then
    later_s = expiry_beyond(newest + window_us, now)
  end
  head = head + gone
  if large == 1 then
    return log_write_large(key, count, newest, expires_s, later_s, head, entry, added, live, width)
  end
  local kept = raw and sub(raw, LOG_HEADER + head * width + 1) or ""
  return to_bytes("<I7I5I4", newest, later_s or expires_s, 0) .. kept .. (entry and packed_rep(entry, added) or ""), later_s
end

-- Takes hits that were spent `age_us` ago, unless they have left the window.
local function sliding_log_charge(key, raw, now, hits, age_us, limit, window_us, min_interval_us, width, large)
  if age_us < window_us then
    return sliding_log_enter(key, raw, now, hits, limit, window_us, min_interval_us, width, large, age_us)
  end
end

local function sliding_log_decide(key, raw, now, hits, limit, window_us, min_interval_us, width, large)
  local wait, remaining, reset_after_us =
    sliding_log_look(key, raw, now, hits, 0, limit, window_us, min_interval_us, width, large)
  if wait < 0 or hits == 0 then
    return wait, remaining, reset_after_us, sliding_log_rebase(key, raw, now, width, large)
  end
  return wait, remaining, reset_after_us,
    sliding_log_enter(key, raw, now, hits, limit, window_us, min_interval_us, width, large)
end

-- Removes `hits` that were entered `age_us` ago: the first at or after that moment, or the newest where there are fewer.
local function sliding_log_refund(key, raw, now, hits, age_us, window_us, width, large)
  local count, newest, expires_s, head = log_open(key, raw, width, large)
  local removed = min(hits, count)
  if removed == 0 or age_us >= window_us then
    return
  end
  local entered, left = max(max(newest, now) - age_us, 0), count - removed
  local from = min(log_count_until(key, raw, count, newest, head, width, entered - 1), left)
  local after = ""
  if left > 0 then
    if from == left then
      local last_low = log_low(key, raw, head, count, width)
      newest = max(newest - packed_gap(last_low, log_low(key, raw, head, left, width), width), 0)
    end
    raw = raw or call("GET", key)
    local first = LOG_HEADER + head * width
    after = to_bytes("<I7I5I4", newest, expires_s, 0) .. sub(raw, first + 1, first + from * width) ..
      sub(raw, first + (from + removed) * width + 1)
  end
  if large == 1 then
    keep(key, after ~= "" and after)
    return
  end
  return after
end

-- Puts back what entries pushed out, and removes them again: `before` counted then, up to `newest_before`. Nothing to do
-- with a log that somebody else has changed since.
local function sliding_log_restore(key, raw, before, newest_before, dropped, width, large)
  local _, _, expires_s, head = log_open(key, raw, width, large)
  local from = LOG_HEADER + head * width
  local entries = dropped .. (raw and sub(raw, from + 1) or call("GETRANGE", key, from, -1))
  local after = ""
  if before > 0 then
    after = to_bytes("<I7I5I4", newest_before, expires_s, 0) .. sub(entries, 1, before * width)
  end
  if large == 1 then
    keep(key, after ~= "" and after)
    return
  end
  return after
end
