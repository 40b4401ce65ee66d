-- Holds: what a request took from a cell while another cell, on another server, may still refuse it. A refusal meanwhile is not
-- certain, because the hold may be put back.
--
-- Beside each cell stands a sorted set, called as the cell with the letter "o": the ends of the holders' reservation keys,
-- by when they came in us. The member "" stands for nobody: its score is when something was last put back, in us below zero.
-- The set is not among KEYS: where a slot of a cluster moves, Redis turns calls away some of whose keys are there and some
-- are not, and most calls never need it. Where it cannot be reached, nothing counts as held.

-- A call that leaves SCARCE times as much of a cell as it takes, and FEW hits more, blocks no other and lists no hold; unless
-- requests must keep a distance, where any hold blocks. As in rounds.rs.
local SCARCE, FEW = 4, 16
-- The wait of a refusal that is not certain, whatever the limit's own wait is (`HELD_RETRY_AFTER` in contract.rs).
local HELD_WAIT = -2 - 99999
-- The wait of a request that is not decided.
local IN_DOUBT = -0.5

local hold, let_go, held_since, may_yet_pass
-- Where nobody ever holds anything, making these functions would cost more than they do.
if letter_at > 0 then
  -- Who holds something for longer is gone, and it stays spent: nobody tries to put it back any more. The list itself is
  -- kept for as long as a reservation.
  local HELD_US, HOLDS_MS = 4000000, 5000
  -- How many holders are looked at, from how many on those are dropped that count no more, and how many bytes of their
  -- names at the end are those of their batch.
  local MOST_HOLDERS, MANY_HOLDERS, BATCH = 256, 64, 8

  -- By the number of a cell's key: since when others hold some of it, or false.
  local held = {}
  -- Reservations come last, all of one batch, which does not wait for itself.
  local last = KEYS[#KEYS]
  local own_batch = sub(last, letter_at, letter_at) == "r" and sub(last, -BATCH)

  local function list_of(key)
    return sub(KEYS[key], 1, letter_at - 1) .. "o" .. sub(KEYS[key], letter_at + 1)
  end

  local function add(list, score, name)
    redis.pcall("ZADD", list, score, name)
    redis.pcall("PEXPIRE", list, time_is_given and TEST_TTL_MS or HOLDS_MS)
  end

  function hold(key, reservation)
    local list = list_of(key)
    add(list, now, sub(reservation, -2 * BATCH))
    -- Who died while it held something never lets go, and whoever comes keeps the list alive.
    if (tonumber(redis.pcall("ZCARD", list)) or 0) > MANY_HOLDERS then
      redis.pcall("ZREMRANGEBYSCORE", list, 0, now - HELD_US)
      redis.pcall("ZREMRANGEBYSCORE", list, now + 1, "+inf")
    end
  end

  -- What was held is put back. What is kept is taken from the list without a script.
  function let_go(key, reservation)
    local list = list_of(key)
    if redis.pcall("ZREM", list, sub(reservation, -2 * BATCH)) == 1 then
      add(list, -now - 1, "")
    end
  end

  -- Since when somebody else holds some of a cell; false if nobody does.
  function held_since(key)
    if held[key] == nil then
      held[key] = false
      -- Not those from the future, which a clock wrote that has since stepped back: they may never let go.
      local holders = redis.pcall("ZRANGEBYSCORE", list_of(key), max(now - HELD_US, 0), now, "WITHSCORES",
        "LIMIT", 0, MOST_HOLDERS)
      for at = 1, #holders, 2 do
        if sub(holders[at], -BATCH) ~= own_batch then
          held[key] = tonumber(holders[at + 1])
          break
        end
      end
    end
    return held[key]
  end

  -- Whether what a cell refuses may pass once others put back what they hold. Who has been in doubt since `since`, where
  -- that is not 0, waits only for those who held something then, and for who came after that was put back: where quota
  -- comes and goes all the time, somebody always holds some.
  function may_yet_pass(key, since)
    local oldest = since < math.huge and held_since(key)
    if not oldest or since == 0 or oldest <= since then
      return oldest
    end
    return -(tonumber(redis.pcall("ZSCORE", list_of(key), "")) or 0) > since
  end
end
