"""A Flask application that says what it understood of each request: which routes, for whom.

Prints its port once it listens. Besides Flask's own reading it gives those of code that one finds behind Flask: paths made
normal before a file is served, the last of several values instead of the first.
"""

import json
import logging
import posixpath

from flask import Flask, request
from werkzeug.serving import make_server

app = Flask(__name__)


def understood(route):
    routes = [route]
    normal = posixpath.normpath("/" + request.path.lstrip("/"))
    if normal.startswith("/expensive"):
        routes.append("expensive")
    cookies = [pair.split("=", 1) for pair in request.headers.get("Cookie", "").split(";") if "=" in pair]
    sessions = [value.strip().strip('"') for name, value in cookies if name.strip() == "sid"]
    return json.dumps(
        {
            "routes": routes,
            "tenants": [request.headers.get("X-Tenant", "")],
            "sessions": [request.cookies.get("sid", "")] + sessions[:1] + sessions[-1:],
            "users": [request.args.get("user", "")] + request.args.getlist("user")[-1:],
            "keys": [request.headers.get("X-Api-Key", "")],
        }
    )


def answer(route):
    return "ok", 200, {"X-Understood": understood(route)}


@app.route("/expensive", methods=["GET", "POST", "PUT"])
@app.route("/expensive/<path:rest>", methods=["GET", "POST", "PUT"])
def expensive(rest=""):
    return answer("expensive")


@app.route("/login", methods=["POST"])
def login():
    return answer("login")


@app.route("/report", methods=["GET"])
def report():
    return answer("report")


@app.route("/api/<name>/export", methods=["GET", "POST", "PUT"])
def export(name):
    return answer("export")


@app.route("/", defaults={"rest": ""}, methods=["GET", "POST", "PUT"])
@app.route("/<path:rest>", methods=["GET", "POST", "PUT"])
def free(rest):
    return answer("free")


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
