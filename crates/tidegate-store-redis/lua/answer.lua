-- Answers a question, if somebody still waits for it.
--
-- KEYS[1]  a hash: questions by their names (see ask.lua)
-- KEYS[2]  a hash: the answers to this one, by who gave them
-- ARGV     the question's name, who answers, the answer, for how long it is kept (ms)
-- Reply    1, or 0 where nobody waits
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call("HSET", KEYS[2], ARGV[2], ARGV[3])
redis.call("PEXPIRE", KEYS[2], ARGV[4])
return 1
