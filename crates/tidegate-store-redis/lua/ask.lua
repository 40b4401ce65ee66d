-- Writes a question; every node reads it with its next heartbeat.
--
-- KEYS[1]  a hash: questions by their names
-- ARGV     the question's name, its text, the most questions at once, how long it is kept (ms)
-- Reply    1, or 0 where there are too many
-- Also where there are too many: questions written by a clock that was ahead would otherwise stay until it gets there again.
redis.call("PEXPIRE", KEYS[1], ARGV[4])
if redis.call("HLEN", KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[2])
redis.call("PEXPIRE", KEYS[1], ARGV[4])
return 1
