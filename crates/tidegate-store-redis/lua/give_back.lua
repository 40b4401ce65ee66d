-- Gives back hits that were taken, into the window that was charged. A leaky bucket's slot cannot be given back: those
-- behind it were already told their time.

local function refund(letter, key, raw, hits, age_us, a, b, c, d, e, f)
  if letter == "b" then
    return token_bucket_refund(raw, now, hits, a, b, c, d, e)
  elseif letter == "w" then
    return sliding_window_refund(raw, now, hits, age_us, a, b, c, d, e)
  elseif letter == "f" then
    return fixed_window_refund(raw, now, hits, age_us, a, b, c, d, e, f)
  elseif letter == "l" then
    return sliding_log_refund(key, raw, now, hits, age_us, b, d, e)
  end
end
