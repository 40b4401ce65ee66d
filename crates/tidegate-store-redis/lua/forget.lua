-- Forgets a cell: its full quota is back.
--
-- KEYS     all that the cell is kept in
-- ARGV     now_us (negative: ask Redis)
-- Reply    now_us, as an 8-byte float
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end
for _, key in ipairs(KEYS) do
  redis.call("UNLINK", key)
end
return struct.pack("<d", now)
