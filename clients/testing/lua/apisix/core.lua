-- Stands in for APISIX's library for plugins: what examples/gateways/apisix uses of it.

return {
  json = require "cjson",
  log = { warn = function(...) ngx.log(ngx.WARN, ...) end },
  request = {
    get_method = ngx.req.get_method,
    get_remote_client_ip = function() return ngx.var.remote_addr end,
    header = function(_, name) return ngx.req.get_headers()[name] end,
  },
  response = { set_header = function(name, value) ngx.header[name] = value end },
  schema = {
    -- Defaults are filled in, as there.
    check = function(schema, conf)
      for name, property in pairs(schema.properties) do
        if conf[name] == nil then
          conf[name] = property.default
        end
      end
      return true
    end,
  },
}
