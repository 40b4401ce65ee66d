-- Our tests run this file in nginx's Lua module, on stand-ins for APISIX's functions and lua-resty-http; APISIX itself was not run.
--
-- A plugin that asks tidegate before it forwards. Install it as apisix/plugins/tidegate.lua and add `tidegate` to `plugins`
-- in config.yaml. Without a plugin of your own, APISIX's `forward-auth` with `uri: http://127.0.0.1:8080/v1/auth?domain=gateway`
-- does the same.

local core = require("apisix.core")
local http = require("resty.http")

local schema = {
  type = "object",
  properties = {
    url = { type = "string", default = "http://127.0.0.1:8080" },
    domain = { type = "string", default = "gateway" },
    key_header = { type = "string", default = "x-api-key" },
    token = { type = "string" },
    -- In milliseconds, for connecting and for the answer.
    timeout = { type = "integer", minimum = 1, default = 50 },
    -- Whether requests pass while tidegate does not answer.
    allow_degradation = { type = "boolean", default = true },
  },
}

local plugin = { version = 0.1, priority = 1001, name = "tidegate", schema = schema }

local HEADERS = { "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset" }

function plugin.check_schema(conf)
  return core.schema.check(schema, conf)
end

function plugin.access(conf, ctx)
  local client = http.new()
  client:set_timeout(conf.timeout)
  local answer, problem = client:request_uri(conf.url .. "/v1/check", {
    method = "POST",
    headers = { ["Content-Type"] = "application/json", ["X-Tidegate-Token"] = conf.token },
    body = core.json.encode({
      domain = conf.domain,
      attributes = {
        api_key = core.request.header(ctx, conf.key_header),
        consumer = ctx.consumer_name,
        ip = core.request.get_remote_client_ip(ctx),
        method = core.request.get_method(),
        path = ctx.var.uri,
      },
    }),
  })
  if not answer or (answer.status ~= 200 and answer.status ~= 429 and answer.status ~= 503) then
    core.log.warn("tidegate does not answer: ", problem or answer.status)
    if conf.allow_degradation then
      return
    end
    return 503, { error_msg = "rate limits cannot be checked" }
  end
  for _, name in ipairs(HEADERS) do
    if answer.headers[name] then
      core.response.set_header(name, answer.headers[name])
    end
  end
  if answer.status ~= 200 then
    core.response.set_header("Retry-After", answer.headers["Retry-After"])
    return answer.status, { error_msg = "rate limit exceeded" }
  end
end

return plugin
