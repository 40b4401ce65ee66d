-- Refused requests, where those count: only in sliding logs and concurrency limits.

-- What the last of `count` equal refused requests is told, once all are noted: who waits as long is admitted.
local function look_noted(letter, key, raw, hits, count, a, b, c, d, e)
  if letter == "l" then
    return sliding_log_look(key, raw, now, hits, hits * count, a, b, c, d, e)
  end
  return concurrency_look(key, now, hits, count, a, b, c)
end

-- Notes `count` of them.
local function note_refused(letter, key, raw, hits, count, a, b, c, d, e)
  if letter == "l" then
    return sliding_log_enter(key, raw, now, hits * count, a, b, c, d, e)
  end
  return concurrency_note_refused(now, count, a, b, c)
end
