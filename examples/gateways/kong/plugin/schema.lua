-- What the plugin of handler.lua can be set to.

return {
  name = "tidegate",
  fields = {
    { config = {
      type = "record",
      fields = {
        { url = { type = "string", required = true, default = "http://127.0.0.1:8080" } },
        { domain = { type = "string", required = true, default = "gateway" } },
        { key_header = { type = "string", required = true, default = "x-api-key" } },
        { token = { type = "string", referenceable = true } },
        -- In milliseconds, for connecting and for the answer.
        { timeout = { type = "integer", default = 50, gt = 0 } },
        -- Whether requests pass while tidegate does not answer.
        { fault_tolerant = { type = "boolean", default = true } },
      },
    } },
  },
}
