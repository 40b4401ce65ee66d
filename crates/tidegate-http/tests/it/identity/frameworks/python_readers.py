"""Prints what Python's frameworks read in each line of stdin: {"cookie": ...} or {"query": ...} or {"token": ..., "secret": ...}.

Text stands for bytes, one character each. One line of JSON per case: {framework: value or null}.
"""

import base64
import hashlib
import hmac
import json
import sys
from http.cookies import CookieError, SimpleCookie

from django.conf import settings

settings.configure()

from django.http import QueryDict
from django.http.cookie import parse_cookie as django_cookie
from starlette.datastructures import QueryParams
from starlette.requests import cookie_parser as starlette_cookie
from werkzeug.datastructures import MultiDict
from werkzeug.http import parse_cookie as werkzeug_cookie
from urllib.parse import parse_qsl


def in_utf8(text):
    """As WSGI servers' frameworks decode a header."""
    return text.encode("latin1").decode("utf-8", "replace")


def simple(text):
    try:
        found = SimpleCookie(text).get("sid")
    except CookieError:
        return None
    return found and found.value


def cookie(text):
    environ = {"HTTP_COOKIE": text}
    return {
        "django": django_cookie(in_utf8(text)).get("sid"),
        "starlette": starlette_cookie(text).get("sid"),
        "flask": flask(environ),
        "http.cookies": simple(text),
    }


def flask(environ):
    try:
        return werkzeug_cookie(environ, cls=MultiDict).get("sid")
    except UnicodeDecodeError:
        return None


def query(text):
    return {
        "django": QueryDict(text).get("token"),
        "starlette": QueryParams(text).get("token"),
        "flask": MultiDict(parse_qsl(text, keep_blank_values=True, errors="replace")).get("token"),
    }


def token(value, secret):
    """As PyJWT reads a header that a view has split: its own base64 drops what does not belong there."""
    words = value.split()
    if not words:
        return {"pyjwt": None}
    signed, _, signature = words[-1].encode("latin1").rpartition(b".")
    try:
        decoded = base64.urlsafe_b64decode(signature + b"=" * (-len(signature) % 4))
    except ValueError:
        return {"pyjwt": None}
    genuine = hmac.compare_digest(decoded, hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    return {"pyjwt": "genuine" if genuine else None}


for line in sys.stdin:
    case = json.loads(line)
    if "cookie" in case:
        read = cookie(case["cookie"])
    elif "query" in case:
        read = query(case["query"])
    else:
        read = token(case["token"], case["secret"])
    print(json.dumps(read))
