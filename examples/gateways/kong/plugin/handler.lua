-- Our tests run this file in nginx's Lua module, on stand-ins for Kong's functions and lua-resty-http; Kong itself was not run.
--
-- A plugin that asks tidegate before it forwards. Install it as kong/plugins/tidegate/{handler,schema}.lua, add `tidegate` to
-- `plugins` in kong.conf, and enable it for a service, a route or everywhere.

local http = require "resty.http"
local cjson = require "cjson.safe"

local Tidegate = { PRIORITY = 910, VERSION = "0.1.0" }

-- Headers of tidegate's answer that callers get.
local HEADERS = { "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset" }

function Tidegate:access(conf)
  local consumer = kong.client.get_consumer()
  local client = http.new()
  client:set_timeout(conf.timeout)
  local answer, problem = client:request_uri(conf.url .. "/v1/check", {
    method = "POST",
    headers = { ["Content-Type"] = "application/json", ["X-Tidegate-Token"] = conf.token },
    body = cjson.encode({
      domain = conf.domain,
      attributes = {
        api_key = kong.request.get_header(conf.key_header),
        consumer = consumer and (consumer.username or consumer.id) or nil,
        ip = kong.client.get_forwarded_ip(),
        method = kong.request.get_method(),
        path = kong.request.get_path(),
      },
    }),
  })
  if not answer or (answer.status ~= 200 and answer.status ~= 429 and answer.status ~= 503) then
    kong.log.warn("tidegate does not answer: ", problem or answer.status)
    if conf.fault_tolerant then
      return
    end
    return kong.response.exit(503, { message = "rate limits cannot be checked" })
  end
  local headers = {}
  for _, name in ipairs(HEADERS) do
    headers[name] = answer.headers[name]
  end
  if answer.status == 200 then
    return kong.response.set_headers(headers)
  end
  headers["Retry-After"] = answer.headers["Retry-After"]
  return kong.response.exit(answer.status, { message = "API rate limit exceeded" }, headers)
end

return Tidegate
