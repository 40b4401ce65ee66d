-- Stands in for lua-resty-http, which Debian does not have: what the plugins of examples/gateways use of it.

local Http = {}
Http.__index = Http

-- Names of headers are in any case, as there.
local any_case = { __index = function(headers, name) return rawget(headers, name:lower()) end }

function Http.new()
  return setmetatable({ timeout = 1000 }, Http)
end

function Http:set_timeout(ms)
  self.timeout = ms
end

function Http:request_uri(uri, options)
  local host, port, path = uri:match("^http://([^:/]+):(%d+)(/.*)$")
  local socket = ngx.socket.tcp()
  socket:settimeout(self.timeout)
  local connected, problem = socket:connect(host, tonumber(port))
  if not connected then
    return nil, problem
  end
  local lines = { options.method .. " " .. path .. " HTTP/1.1", "Host: " .. host .. ":" .. port, "Connection: close" }
  for name, value in pairs(options.headers) do
    table.insert(lines, name .. ": " .. value)
  end
  table.insert(lines, "Content-Length: " .. #options.body)
  socket:send(table.concat(lines, "\r\n") .. "\r\n\r\n" .. options.body)
  local line
  line, problem = socket:receive("*l")
  if not line then
    return nil, problem
  end
  local answer = { status = tonumber(line:match("^HTTP/1%.1 (%d+)")), headers = setmetatable({}, any_case) }
  for line in function() return socket:receive("*l") end do
    local name, value = line:match("^([^:]+):%s*(.*)$")
    if not name then
      break
    end
    answer.headers[name:lower()] = value
  end
  answer.body = socket:receive(tonumber(answer.headers["content-length"] or 0))
  socket:close()
  return answer
end

return Http
