"""An emulator of AWS: `moto`, which forgets all when it ends. One request at a time: it does not make its own steps atomic.

GET /_calls: how many calls it has answered.
POST /_refuse {"code": ..., "status": ..., "count": n, "of": ...}: the next n calls (of that name, if there is one) are refused so, as
AWS documents it.
"""

import json
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

emulator = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()
refusal = {"count": 0, "of": ""}
calls = {"count": 0}


class Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, *_):
        pass


def serve(environ, start_response):
    with turn:
        if environ["PATH_INFO"] == "/_calls":
            return Response(str(calls["count"]))(environ, start_response)
        if environ["PATH_INFO"] == "/":
            calls["count"] += 1
        if environ["PATH_INFO"] == "/_refuse":
            refusal.update(json.loads(Request(environ).get_data()))
            return Response("{}")(environ, start_response)
        is_of = environ.get("HTTP_X_AMZ_TARGET", "").endswith(refusal["of"])
        if refusal["count"] > 0 and is_of and environ["PATH_INFO"] == "/":
            refusal["count"] -= 1
            Request(environ).get_data()
            body = {"__type": "com.amazonaws.dynamodb.v20120810#" + refusal["code"], "message": "as the test asked"}
            answer = Response(json.dumps(body), refusal["status"], content_type="application/x-amz-json-1.0")
            return answer(environ, start_response)
        return list(emulator(environ, start_response))


run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True, request_handler=Handler)
