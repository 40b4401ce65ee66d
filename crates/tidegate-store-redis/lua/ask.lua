-- Puts a question where every node hears it with its next heartbeat.
--
-- KEYS[1]  a hash: questions by their names
-- ARGV     the question's name, its text, how many there may be at once, for how long it is kept (ms)
-- Reply    1, or 0 where there are too many
-- Also where there are too many: those asked by a clock that was ahead would otherwise stay until it gets there again.
redis.call("PEXPIRE", KEYS[1], ARGV[4])
if redis.call("HLEN", KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[2])
redis.call("PEXPIRE", KEYS[1], ARGV[4])
return 1
