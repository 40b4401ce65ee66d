"""HTTP/1.1 without a socket: bytes of a request, and a reader of the answer's bytes.

Both clients use it. ``http.client`` would not do: its timeout is per read, so a server that sends a byte at a time holds a
caller far beyond the deadline.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Optional
from urllib.parse import urlsplit

from .errors import ConfigError, Unavailable

MAX_HEAD = 64 * 1024
MAX_BODY = 32 * 1024 * 1024


@dataclass(frozen=True)
class Address:
    """Where the server is."""

    tls: bool
    host: str
    port: int
    #: A path before ``/v1``, without a slash at its end.
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        hint = "expected a URL such as http://127.0.0.1:8080"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not an address: {error}; {hint}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not an address; {hint}")
        if parts.username or parts.query or parts.fragment:
            raise ConfigError(f"{url!r} has more than an address; {hint}, and the token apart")
        tls = parts.scheme == "https"
        default = 443 if tls else 80
        return cls(tls, parts.hostname, default if port is None else port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


def request(address: Address, path: str, token: Optional[str], payload: Any) -> bytes:
    """A request as it is sent."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
    lines = [
        f"{'GET' if payload is None else 'POST'} {address.prefix}{path} HTTP/1.1",
        f"host: {host}:{address.port}",
        "accept: application/json",
        "user-agent: tidegate-python/0.1.0",
    ]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    if payload is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass
class Response:
    """An answer, read to its end."""

    status: int
    headers: Dict[str, str]
    body: bytes
    reusable: bool


class ResponseReader:
    """Takes bytes as they come, and gives the answer once it is whole."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: Optional[tuple[int, Dict[str, str]]] = None

    def feed(self, data: bytes) -> Optional[Response]:
        """Takes more bytes. Empty ones mean that the server closed the connection."""
        self._data += data
        if len(self._data) > MAX_HEAD + MAX_BODY:
            raise _strange("an answer that is too large")
        if self._head is None and not self._read_head():
            if not data:
                raise Unavailable("the server closed the connection without an answer", "protocol")
            return None
        assert self._head is not None
        status, headers = self._head
        body, rest = self._body(headers, closed=not data)
        if body is None:
            return None
        reusable = not rest and bool(data) and headers.get("connection", "").lower() != "close"
        return Response(status, headers, body, reusable)

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > MAX_HEAD:
                raise _strange("headers that are too large")
            return False
        first, *lines = bytes(self._data[:end]).decode("latin-1").split("\r\n")
        del self._data[: end + 4]
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise _strange("something that is not HTTP")
        headers: Dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        status = int(words[1])
        if 100 <= status < 200:
            return self._read_head()
        self._head = (status, headers)
        return True

    def _body(self, headers: Dict[str, str], closed: bool) -> tuple[Optional[bytes], bool]:
        """The whole body, if it is here, and whether bytes are left that nobody asked for."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, end = _unchunked(self._data)
        else:
            length = headers.get("content-length")
            if length is None:
                return (bytes(self._data), True) if closed else (None, False)
            if not length.isdigit() or int(length) > MAX_BODY:
                raise _strange("a strange content-length")
            end = int(length)
            body = bytes(self._data[:end]) if len(self._data) >= end else None
        if body is None and closed:
            raise Unavailable("the server closed the connection within an answer", "protocol")
        return body, body is not None and len(self._data) > end


def _unchunked(data: bytearray) -> tuple[Optional[bytes], int]:
    body, at = bytearray(), 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None, 0
        try:
            size = int(bytes(data[at:end]).split(b";")[0], 16)
        except ValueError:
            raise _strange("a strange chunk") from None
        start = end + 2
        if size == 0:
            # Trailers, if any, end with an empty line.
            stop = start if data[start : start + 2] == b"\r\n" else data.find(b"\r\n\r\n", start) + 2
            whole = stop >= start and len(data) >= stop + 2
            return (bytes(body), stop + 2) if whole else (None, 0)
        if len(data) < start + size + 2:
            return None, 0
        body += data[start : start + size]
        at = start + size + 2


def _strange(what: str) -> Unavailable:
    return Unavailable(f"the server sent {what}: is it tidegate's HTTP listener?", "protocol")
