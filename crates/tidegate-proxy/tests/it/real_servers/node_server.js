// A plain Node server that says what it understood of each request: which routes, for whom. Prints its port once it
// listens. One request is read in all the ways that code on Node reads requests.

"use strict";
const http = require("node:http");
const path = require("node:path");
const url = require("node:url");
const querystring = require("node:querystring");

const decode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

function pathsOf(target) {
  const raw = target.split("?")[0];
  const paths = [raw, decode(raw)];
  // The idiom of every tutorial.
  try {
    const pathname = new URL(target, "http://localhost").pathname;
    paths.push(pathname, decode(pathname));
  } catch {}
  try {
    paths.push(url.parse(target).pathname ?? "");
  } catch {}
  // What serves files does this.
  paths.push(path.posix.normalize(decode(raw)), path.win32.normalize(decode(raw)).replaceAll("\\", "/"));
  // Routers compare segment by segment, and most forgive a final slash.
  paths.push(raw.split("/").map(decode).join("\0").replace(/^\0/, "/").replaceAll("\0", "/"));
  return paths;
}

function routeOf(pathname, methods) {
  const bare = pathname.replace(/\/+$/, "") || "/";
  if (bare === "/expensive" || bare.startsWith("/expensive/")) return "expensive";
  if (bare === "/login" && methods.includes("POST")) return "login";
  if (bare === "/report" && (methods.includes("GET") || methods.includes("HEAD"))) return "report";
  if (/^\/api\/[^/]+\/export$/.test(bare)) return "export";
  return "free";
}

const several = (value) => (value === undefined ? [] : [value].flat());

const server = http.createServer((request, response) => {
  request.resume();
  const methods = [request.method];
  const named = request.headers["x-http-method-override"];
  if (named && request.method === "POST") methods.push(named.toUpperCase());
  const cookies = (request.headers.cookie ?? "").split(";").map((pair) => pair.split("="));
  const sessions = cookies
    .filter(([name]) => name.trim() === "sid")
    .map(([, ...value]) => decode(value.join("=").trim().replace(/^"(.*)"$/, "$1")));
  const query = querystring.parse(request.url.split("?")[1] ?? "");
  const users = several(query.user).concat(several(query["user[]"]));
  const understood = {
    routes: [...new Set(pathsOf(request.url).map((pathname) => routeOf(pathname, methods)))],
    tenants: several(request.headers["x-tenant"]),
    sessions: [...sessions.slice(0, 1), ...sessions.slice(-1)],
    users: [...users.slice(0, 1), ...users.slice(-1)],
    keys: several(request.headers["x-api-key"]),
  };
  response.setHeader("X-Understood", encodeURI(JSON.stringify(understood)));
  response.end("ok");
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
