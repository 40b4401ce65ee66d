-- Notes a refused request, where those count: only in sliding logs and concurrency limits.

local function note_refused(letter, key, raw, hits, a, b, c, d, e)
  if letter == "l" then
    return sliding_log_enter(key, raw, now, hits, a, b, c, d, e)
  end
  return concurrency_note_refused(key, raw, now, a, b, c)
end
