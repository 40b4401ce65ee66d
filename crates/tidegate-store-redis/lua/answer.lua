-- Writes an answer, if its question is still open.
--
-- KEYS[1]  a hash: questions by their names (see ask.lua)
-- KEYS[2]  a hash: the answers to it, by node
-- ARGV     the question's name, the node, its answer, how long it is kept (ms)
-- Reply    1, or 0 if the question is closed
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call("HSET", KEYS[2], ARGV[2], ARGV[3])
redis.call("PEXPIRE", KEYS[2], ARGV[4])
return 1
