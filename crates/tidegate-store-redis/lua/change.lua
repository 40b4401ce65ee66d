-- Changes cells outside a request: gives hits back, takes hits spent elsewhere, renews and releases leases.
--
-- KEYS     the cells, then strings that say that a cell has had a refund
-- Items    key (2 bytes: its number), algorithm (a letter), what (1 byte: 1 refund, 2 charge, 3 renew, 4 release), refund
--          (2 bytes: of one that may be sent again, the number of the key that says so; else 0), hits, age_us, overdraft
--          and the limit's six numbers (8-byte floats; of a concurrency limit the sixth is the number of the lease's name
--          in ARGV[2])
-- Reply    a byte per item: "1", or "0" for a lease that had ended and for a cell that has had the refund. Then now_us, as an
--          8-byte float

local REFUND, CHARGE, RENEW = 1, 2, 3
-- A cell is known to have had a refund for this long (RefundId::KNOWN_FOR).
local REFUND_KNOWN_MS = 120000

-- Whether a cell has had the refund that `key` stands for. From here on it has.
local function has_had(key)
  return not call("SET", key, "", "PX", REFUND_KNOWN_MS, "NX")
end

local reply = {}
for index = 1, items do
  local number, letter, what, id, hits, age_us, overdraft, a, b, c, d, e, f
  number, letter, what, id, hits, age_us, overdraft, a, b, c, d, e, f, at = from_bytes("<I2c1I1I2ddddddddd", plan, at)
  local key, raw = KEYS[number], nil
  if number <= readable then
    raw = call("GET", key)
  end
  if letter == "l" then
    raw = log_adopted(key, raw, now, a, b, d, e)
  end
  local done, after, expires_s = true, nil, nil
  if what == REFUND and id > 0 and has_had(KEYS[id]) then
    done = false
  elseif what == REFUND then
    after, expires_s = refund(letter, key, raw, hits, age_us, a, b, c, d, e, f)
  elseif what == CHARGE then
    after, expires_s = charge(letter, key, raw, hits, age_us, overdraft, a, b, c, d, e, f)
  else
    local name = lease_name(f)
    if what == RENEW then
      done = concurrency_renew(key, now, name, b)
    else
      done = concurrency_release(key, now, name)
    end
  end
  if after and (after ~= "" or raw) then
    keep(key, after ~= "" and after, expires_s)
  end
  reply[index] = done and "1" or "0"
end
reply[items + 1] = to_bytes("<d", now)
return table.concat(reply)
