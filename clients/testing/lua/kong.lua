-- Stands in for Kong's plugin development kit: what examples/gateways/kong uses of it.

local cjson = require "cjson"

local function set_headers(headers)
  for name, value in pairs(headers or {}) do
    ngx.header[name] = value
  end
end

return {
  client = {
    get_consumer = function() return nil end,
    get_forwarded_ip = function() return ngx.var.remote_addr end,
  },
  request = {
    get_header = function(name) return ngx.req.get_headers()[name] end,
    get_method = ngx.req.get_method,
    get_path = function() return ngx.var.uri end,
  },
  response = {
    set_headers = set_headers,
    exit = function(status, body, headers)
      ngx.status = status
      set_headers(headers)
      if body then
        ngx.header["Content-Type"] = "application/json"
        ngx.say(cjson.encode(body))
      else
        ngx.send_headers()
      end
      return ngx.exit(ngx.HTTP_OK)
    end,
  },
  log = { warn = function(...) ngx.log(ngx.WARN, ...) end },
}
