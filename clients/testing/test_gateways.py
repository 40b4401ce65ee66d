"""Traefik, HAProxy and Cloudflare's worker runtime with the files of examples/gateways, in front of the real server. Only addresses are changed.

The plugins for Kong and APISIX run in nginx with its Lua module, on stand-ins for what those two add to it (`lua/`).
"""

from __future__ import annotations

import http.client
import http.server
import socket
import subprocess
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from typing import Dict, List, Optional

from world import ROOT, Tidegate, clean_env, tool

EXAMPLES = ROOT / "examples/gateways"


class Upstream:
    """A service that says hello, and counts."""

    def __init__(self) -> None:
        upstream = self
        self.requests = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                upstream.requests += 1
                self.send_response(200)
                self.send_header("content-length", "5")
                self.end_headers()
                self.wfile.write(b"hello")

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = "127.0.0.1:%d" % self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class WithUpstream(unittest.TestCase):
    """A service behind a gateway that asks tidegate."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.upstream = Upstream()
        self.addCleanup(self.upstream.stop)

    def example(self, name: str, addresses: Dict[str, str]) -> Path:
        """A file of the examples, with these addresses in place of those that it shows."""
        text = (EXAMPLES / name).read_text()
        for shown, real in addresses.items():
            self.assertIn(shown, text)
            text = text.replace(shown, real)
        path = self.folder / Path(name).name
        path.write_text(text)
        return path

    def tidegate(self, arguments: List[str], listeners: List[str]) -> Tidegate:
        server = Tidegate(self.folder, arguments, listeners)
        self.addCleanup(server.stop)
        return server

    def gateway(self, command: List[str], address: str) -> None:
        """Starts a gateway, and waits until it forwards; its log is shown if it does not."""
        log = (self.folder / "gateway.log").open("w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=clean_env(), cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        host, port = address.split(":")
        status = 0
        for number in range(1200):
            log.seek(0)
            self.assertIsNone(process.poll(), log.read())
            try:
                connection = http.client.HTTPConnection(host, int(port), timeout=30)
                # A caller of its own each time, whom no limit has met.
                connection.request("GET", "/ready", headers={"x-api-key": f"ready-{number}"})
                status = connection.getresponse().status
                connection.close()
                if status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail(f"answers {status}: {log.read()}")

    def ask(self, address: str, path: str, headers: Dict[str, str], body: Optional[bytes] = None) -> http.client.HTTPResponse:
        host, port = address.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self.addCleanup(connection.close)
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response


class Gateways(WithUpstream):
    """As their files say."""

    def test_traefik_asks_before_it_forwards_and_passes_the_refusal_on(self) -> None:
        server = self.tidegate(["--config", str(EXAMPLES / "tidegate.yaml")], ["http", "admin"])
        file = self.example(
            "traefik/dynamic.yaml", {"127.0.0.1:8080": server.addresses["http"], "127.0.0.1:3000": self.upstream.address}
        )
        address = free_address()
        quiet = ["--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"]
        options = [f"--entryPoints.web.address={address}", f"--providers.file.filename={file}", *quiet]
        self.gateway([tool("traefik"), *options], address)
        before = self.upstream.requests
        answers = [self.ask(address, "/items", {"x-api-key": "alpha"}) for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 429])
        self.assertEqual(self.upstream.requests - before, 3)
        refused = answers[3]
        self.assertEqual(refused.getheader("content-type"), "application/problem+json")
        self.assertEqual(refused.getheader("x-ratelimit-remaining"), "0")
        self.assertTrue(1 <= int(refused.getheader("retry-after") or 0) <= 3600)
        self.assertEqual(self.ask(address, "/items", {"x-api-key": "beta"}).status, 200)
        # Two log-ins an hour pass for each address, however the path is written, and whatever a client claims.
        logins = [self.ask(address, path, {}, b"x=1").status for path in ("/login", "//Login/", "/login")]
        self.assertEqual(logins, [200, 200, 429])
        for name, value in {
            "x-forwarded-for": "192.0.2.9",
            "x-forwarded-uri": "/cheap",
            "x-forwarded-method": "GET",
            "x-original-uri": "/cheap",
            "x-original-url": "http://x/cheap",
            "x-original-method": "GET",
            "x-original-host": "cheap.example",
            "x-real-ip": "192.0.2.9",
        }.items():
            with self.subTest(name):
                self.assertEqual(self.ask(address, "/login", {name: value}, b"x=1").status, 429)

    def test_haproxy_sends_each_key_to_one_of_two_proxies_that_share_nothing(self) -> None:
        self.example("sticky-rules.yaml", {})
        config = self.example("sticky-node.yaml", {"127.0.0.1:8090": "127.0.0.1:0", "127.0.0.1:3000": self.upstream.address})
        nodes = [self.tidegate(["--config", str(config)], ["http", "admin", "proxy"]) for _ in range(2)]
        one, two = (node.addresses["proxy"] for node in nodes)
        address = free_address()
        file = self.example("haproxy/haproxy.cfg", {"127.0.0.1:8000": address, "127.0.0.1:8090": one, "127.0.0.1:8190": two})
        self.gateway([tool("haproxy"), "-db", "-f", str(file)], address)
        for number in range(24):
            headers = {"x-api-key": f"key-{number}"}
            statuses = [self.ask(address, "/items", headers).status for _ in range(5)]
            self.assertEqual(statuses, [200, 200, 200, 429, 429], headers)
        for node in nodes:
            metrics = http.client.HTTPConnection(*node.addresses["admin"].split(":"), timeout=30)
            self.addCleanup(metrics.close)
            metrics.request("GET", "/metrics")
            lines = metrics.getresponse().read().decode().splitlines()
            decided = [line for line in lines if line.startswith("tidegate_decisions_total") and "per-key" in line]
            self.assertGreaterEqual(sum(float(line.split()[-1]) for line in decided), 5, "a node had nothing to decide")


    def test_cloudflare_worker_asks_before_it_forwards(self) -> None:
        server = self.tidegate(["--config", str(EXAMPLES / "tidegate.yaml")], ["http", "admin"])
        address = free_address()
        variables = {
            "TIDEGATE_URL": "http://" + server.addresses["http"],
            "TIDEGATE_DOMAIN": "gateway",
            "ORIGIN": "http://" + self.upstream.address,
            # A busy machine may take longer than a deployment should wait.
            "DEADLINE_MS": "20000",
        }
        bindings = ", ".join(f'(name = "{name}", text = "{value}")' for name, value in variables.items())
        config = self.folder / "worker.capnp"
        config.write_text(
            f"""using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = (
      modules = [(name = "worker", esModule = embed "worker.mjs")],
      compatibilityDate = "2026-01-01", bindings = [{bindings}])),
    (name = "internet", network = (allow = ["private", "public", "local"])),
  ],
  sockets = [(name = "http", address = "{address}", http = (), service = "main")]
);
"""
        )
        self.example("cloudflare/worker.mjs", {})
        self.gateway([str(Path(tool("workerd")) / "bin/workerd"), "serve", str(config)], address)
        before = self.upstream.requests
        answers = [self.ask(address, "/items", {"x-api-key": "alpha"}) for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 429])
        self.assertEqual(self.upstream.requests - before, 3)
        self.assertEqual([answer.getheader("x-ratelimit-remaining") for answer in answers], ["2", "1", "0", "0"])
        self.assertTrue(1 <= int(answers[3].getheader("retry-after") or 0) <= 3600)
        self.assertEqual(answers[3].getheader("content-type"), "application/problem+json")


class LuaPlugins(WithUpstream):
    """nginx with its Lua module, as Kong and APISIX are."""

    def plugin(self, name: str, installed: str) -> None:
        path = self.folder / installed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((EXAMPLES / name).read_text())

    def run_plugin(self, lua: str) -> None:
        """`lua` decides in the access phase; `CONF` stands for what the plugin is set to, `%s` for more of it."""
        self.server = self.tidegate(["--config", str(EXAMPLES / "tidegate.yaml")], ["http", "admin"])
        self.address = free_address()
        modules = Path(tool("nginx-lua")).parent
        places = "".join(f"{kind}_temp_path {self.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        # More patience than a gateway should have: the machine may be busy.
        settings = f'url = "http://{self.server.addresses["http"]}", domain = "gateway", key_header = "x-api-key", timeout = 20000'

        def location(path: str, more: str) -> str:
            code = lua.replace("CONF", f"{{ {settings}{more} }}")
            return f"location {path} {{ access_by_lua_block {{\n{code}\n}} proxy_pass http://{self.upstream.address}; }}\n"

        config = self.folder / "nginx.conf"
        config.write_text(f"""
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
master_process off;
pid {self.folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
access_log off;
{places}
lua_package_path '{self.folder}/?.lua;{ROOT}/clients/testing/lua/?.lua;/usr/share/lua/5.1/?.lua;;';
init_by_lua_block {{ kong = require "kong" }}
server {{
listen {self.address};
{location("/", "")}
{location("/strict", ", fault_tolerant = false, allow_degradation = false")}
}}
}}
""")
        self.gateway([tool("nginx"), "-p", str(self.folder), "-c", str(config)], self.address)

    def check_limits(self) -> List[http.client.HTTPResponse]:
        """That three requests of a key pass, and two log-ins of an address; returns the answers of the former."""
        before = self.upstream.requests
        answers = [self.ask(self.address, "/items", {"x-api-key": "alpha"}) for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 429])
        self.assertEqual(self.upstream.requests - before, 3)
        self.assertTrue(1 <= int(answers[3].getheader("retry-after") or 0) <= 3600)
        self.assertEqual(self.ask(self.address, "/items", {"x-api-key": "beta"}).status, 200)
        self.assertEqual([self.ask(self.address, "/login", {}, b"x=1").status for _ in range(3)], [200, 200, 429])
        return answers

    def check_without_tidegate(self, strict: int) -> None:
        self.server.stop()
        statuses = [self.ask(self.address, path, {"x-api-key": "alpha"}).status for path in ("/items", "/strict")]
        self.assertEqual(statuses, [200, strict])

    def test_kong_plugin_asks_before_it_forwards_and_passes_the_headers_on(self) -> None:
        self.plugin("kong/plugin/handler.lua", "kong/plugins/tidegate/handler.lua")
        self.plugin("kong/plugin/schema.lua", "kong/plugins/tidegate/schema.lua")
        self.run_plugin("""
            local conf, schema = CONF, require "kong.plugins.tidegate.schema"
            for _, field in ipairs(schema.fields[1].config.fields) do
              local name, says = next(field)
              if conf[name] == nil then conf[name] = says.default end
            end
            return require("kong.plugins.tidegate.handler"):access(conf)""")
        answers = self.check_limits()
        self.assertEqual([answer.getheader("x-ratelimit-remaining") for answer in answers], ["2", "1", "0", "0"])
        self.check_without_tidegate(strict=503)

    def test_kong_serverless_function_asks_before_it_forwards(self) -> None:
        text = (EXAMPLES / "kong/kong.yaml").read_text()
        lua = textwrap.dedent(text.split("- |\n")[1])
        given = {'"http://127.0.0.1:8080/v1/check"': 'conf.url .. "/v1/check"', "set_timeout(50)": "set_timeout(conf.timeout)"}
        for shown, instead in given.items():
            self.assertIn(shown, lua)
            lua = lua.replace(shown, instead)
        self.run_plugin("local conf = CONF\n" + lua)
        self.check_limits()
        # It has no other policy.
        self.check_without_tidegate(strict=200)

    def test_apisix_plugin_asks_before_it_forwards_and_passes_the_headers_on(self) -> None:
        self.plugin("apisix/tidegate.lua", "apisix/plugins/tidegate.lua")
        # APISIX sends the status and body that a plugin returns.
        self.run_plugin("""
            local plugin, conf = require "apisix.plugins.tidegate", CONF
            assert(plugin.check_schema(conf))
            local status, body = plugin.access(conf, { var = ngx.var })
            if status then
              ngx.status = status
              ngx.say(require("cjson").encode(body))
              return ngx.exit(ngx.HTTP_OK)
            end""")
        answers = self.check_limits()
        self.assertEqual([answer.getheader("x-ratelimit-remaining") for answer in answers], ["2", "1", "0", "0"])
        self.check_without_tidegate(strict=503)


def free_address() -> str:
    """An address that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "127.0.0.1:%d" % listener.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
