-- Notes `count` equal refused requests, where those count: only in sliding logs and concurrency limits.

local function note_refused(letter, key, raw, hits, count, a, b, c, d, e)
  if letter == "l" then
    return sliding_log_enter(key, raw, now, hits * count, a, b, c, d, e)
  end
  return concurrency_note_refused(key, raw, now, count, a, b, c)
end
