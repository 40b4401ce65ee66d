-- Gives back what was taken: hits into the window that was charged, a lease by its name. A leaky bucket's slot cannot be
-- given back: those behind it were already told their time.

local function refund(letter, key, raw, hits, age_us, a, b, c, d, e, f)
  if letter == "b" then
    return token_bucket_refund(raw, now, hits, a, b, c, d, e)
  elseif letter == "w" then
    return sliding_window_refund(raw, now, hits, age_us, a, b, c, d, e)
  elseif letter == "f" then
    return fixed_window_refund(raw, now, hits, age_us, a, b, c, d, e, f)
  elseif letter == "l" then
    return sliding_log_refund(key, raw, hits, d, e)
  end
end

local function release(letter, key, raw, name, a, b, c)
  if letter == "c" then
    return concurrency_release(key, raw, now, name, a, b, c)
  end
  return concurrency_large_release(key, now, name, a, b, c)
end
