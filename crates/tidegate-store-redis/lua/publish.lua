-- Puts what is published where every limiter finds it.
--
-- KEYS[1]  a hash: the database it is from (lineage), its number (revision), what tells it from another of that number (mark),
--          the whole (set), what came after it (changes), and what a node must be able to read for that (format)
-- ARGV     lineage, revision, set, changes, for how long it is kept (ms), 1 if the database was set back to an older revision,
--          mark, format
-- Reply    1, or 0 where what is there is another database's
local found = redis.call("HMGET", KEYS[1], "lineage", "revision")
if found[1] and found[1] ~= ARGV[1] then
  return 0
end
if ARGV[6] == "1" or tonumber(ARGV[2]) >= tonumber(found[2] or "-1") then
  redis.call("HSET", KEYS[1], "lineage", ARGV[1], "revision", ARGV[2], "set", ARGV[3], "changes", ARGV[4],
    "mark", ARGV[7], "format", ARGV[8])
end
redis.call("PEXPIRE", KEYS[1], ARGV[5])
return 1
