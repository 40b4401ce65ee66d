-- Puts what is published where every limiter finds it.
--
-- KEYS[1]  a hash: the database it is from (lineage), its number (revision), what tells it from another of that number (mark),
--          the whole (set), what came after it (changes), what a node must be able to read for that (format), its place in the
--          order of publications (serial, 0: unknown), and the signature of lineage, revision, mark and serial (seal)
-- ARGV     lineage, revision, set, changes, for how long it is kept (ms), 1 if the database was set back to an older revision,
--          mark, format, serial, seal, and what is replaced whatever it says (lineage, revision, mark, serial and seal, with a
--          zero byte between; empty: nothing)
-- Reply    1; 0 where what is there is another database's, 2 where it is later in the order
local found = redis.pcall("HMGET", KEYS[1], "lineage", "revision", "mark", "serial", "seal")
if found.err then
  -- Another program's key under our name: no limiter can read it.
  redis.call("DEL", KEYS[1])
  found = {}
end
local there = {}
for at = 1, 5 do
  there[at] = found[at] or ""
end
if table.concat(there, "\0") ~= ARGV[11] then
  if found[1] and found[1] ~= ARGV[1] then
    return 0
  end
  if ARGV[9] ~= "0" and tonumber(ARGV[9]) <= (tonumber(found[4] or "0") or 0) then
    return 2
  end
  if ARGV[6] ~= "1" and tonumber(ARGV[2]) < (tonumber(found[2] or "-1") or -1) then
    redis.call("PEXPIRE", KEYS[1], ARGV[5])
    return 1
  end
end
redis.call("HSET", KEYS[1], "lineage", ARGV[1], "revision", ARGV[2], "set", ARGV[3], "changes", ARGV[4],
  "mark", ARGV[7], "format", ARGV[8], "serial", ARGV[9], "seal", ARGV[10])
redis.call("PEXPIRE", KEYS[1], ARGV[5])
return 1
