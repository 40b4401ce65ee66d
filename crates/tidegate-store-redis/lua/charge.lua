-- Takes hits that were already spent, whether or not they fit, from when they were spent on.
local function charge(letter, key, raw, hits, age_us, overdraft, a, b, c, d, e, f)
  if letter == "b" then
    return token_bucket_charge(raw, now, hits, age_us, overdraft, a, b, c, d, e)
  elseif letter == "w" then
    return sliding_window_charge(raw, now, hits, age_us, overdraft, a, b, c, d, e)
  elseif letter == "f" then
    return fixed_window_charge(raw, now, hits, age_us, overdraft, a, b, c, d, e, f)
  elseif letter == "q" then
    return leaky_bucket_charge(raw, now, hits, age_us, overdraft, a, b, c, d, e)
  elseif letter == "l" then
    return sliding_log_charge(key, raw, now, hits, age_us, a, b, c, d, e)
  end
end
