"""The sync client. Threads may share one."""

from __future__ import annotations

import ipaddress
import random
import select
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, TypeVar, Union

from . import _wire
from ._calls import Attributes, Call, Calls, Check, log
from .decision import Decision
from .errors import LeaseEnded, RateLimited, TidegateError, Unauthorized, Unavailable

T = TypeVar("T")


class Client(Calls):
    """Asks a tidegate server over HTTP, on connections that are kept.

    :param url: such as ``http://127.0.0.1:8080``
    :param domain: whose rules apply, unless a call names another
    :param token: one of the server's ``access.tokens``
    :param deadline: seconds that a call may take, retries included
    :param on_failure: without an answer in time, ``open`` lets pass, ``closed`` refuses, ``raise`` raises
    :param retries: how often to ask again, within the deadline. Checks then carry a request id, so none is charged twice
    :param max_idle: connections kept for the next calls
    :param ca_file: PEM file of the authority that signed the server's certificate
    :param on_error: called with each error that the failure policy hides; by default one warning in ten seconds is logged
    """

    def __init__(self, url: str, *, domain: str, **settings: Any) -> None:
        super().__init__(url, domain=domain, **settings)
        self._idle: List[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False

    # -- questions

    def check(
        self,
        attributes: Attributes,
        *,
        cost: int = 1,
        domain: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> Decision:
        """Decides one request, and spends its cost if it passes. ``cost=0`` looks without spending."""
        return self._run(self._check_call(attributes, cost, domain, request_id))

    def batch(self, checks: Iterable[Union[Check, Attributes]]) -> List[Decision]:
        """Decides several requests in one call, each on its own."""
        return self._run(self._batch_call(checks))

    def charge(self, attributes: Attributes, amount: int, **options: Any) -> Decision:
        """Spends an amount that is known only afterwards, such as tokens of an answer.

        Rules with ``over: debt`` spend it even where less is left; others refuse, and spend nothing.
        """
        return self.check(attributes, cost=amount, **options)

    def refund(
        self,
        attributes: Attributes,
        amount: int = 1,
        *,
        spent: Optional[str] = None,
        domain: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> None:
        """Gives hits back; with ``spent`` of the decision, into the window that was charged."""
        self._run(self._refund_call(attributes, amount, spent, domain, request_id))

    def usage(self, attributes: Attributes, *, domain: Optional[str] = None) -> Dict[str, Any]:
        """What is left under every rule that matches; spends nothing."""
        return self._run(self._usage_call(attributes, domain))

    def release(self, lease: str) -> None:
        """Ends a lease. Twice does no harm."""
        self._run(self._release_call(lease))

    def renew(self, lease: str) -> None:
        """Gives a lease another time to live; raises LeaseEnded where it is over."""
        self._run(self._renew_call(lease))

    def ping(self) -> None:
        """Raises unless the server can be reached, shows the right certificate and takes the token."""
        self._run(self._ping_call())

    @contextmanager
    def lease(self, attributes: Attributes, **options: Any) -> Iterator[Decision]:
        """Holds a concurrency slot while the block runs; raises RateLimited where none is free."""
        decision = self.check(attributes, **options)
        if not decision.allowed:
            raise RateLimited(decision)
        try:
            yield decision
        finally:
            if decision.lease is not None:
                self._release_quietly(decision.lease)

    def _release_quietly(self, lease: str) -> None:
        try:
            self.release(lease)
        except (Unavailable, Unauthorized, LeaseEnded) as error:
            log.warning("lease not released, it ends with its time to live: %s", error)

    def acquire(self, attributes: Attributes, *, wait: float, **options: Any) -> Decision:
        """Checks until allowed, waiting as the server says and a little longer, at most ``wait`` seconds in all.

        Raises RateLimited where that would take longer.
        """
        until = time.monotonic() + wait
        while True:
            decision = self.check(attributes, **options)
            if decision.allowed:
                time.sleep(decision.delay)
                return decision
            pause = pause_after(decision)
            if pause is None or time.monotonic() + pause > until:
                raise RateLimited(decision)
            time.sleep(pause)

    # -- connections

    def close(self) -> None:
        """Closes the kept connections."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Call[T]) -> T:
        try:
            return call.read(self._ask(call))
        except (Unavailable, Unauthorized) as error:
            return self.failed(call, error)

    def _ask(self, call: Call[T]) -> _wire.Response:
        data = _wire.request(self.address, call.path, self.token, call.payload)
        until = time.monotonic() + self.deadline
        tries = 1 + (self.retries if call.repeatable else 0)
        while True:
            # Each try gets an equal part of what is left, or the first would use it all.
            now = time.monotonic()
            end = now + (until - now) / tries
            try:
                return self._exchange(data, end)
            except Unavailable:
                tries -= 1
                if tries == 0 or time.monotonic() >= until:
                    raise
                time.sleep(min(random.uniform(0, 0.02), max(0.0, until - time.monotonic())))

    def _exchange(self, data: bytes, end: float) -> _wire.Response:
        sock = self._kept()
        try:
            if sock is None:
                sock = connect(self.address, self.ssl, end)
            sock.settimeout(_left(end))
            sock.sendall(data)
            reader, response = _wire.ResponseReader(), None
            while response is None:
                sock.settimeout(_left(end))
                response = reader.feed(sock.recv(65536))
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, OSError):
                raise as_failure(error, self.address, self.deadline) from error
            raise
        if not response.reusable or not self._keep(sock):
            sock.close()
        return response

    def _kept(self) -> Optional[socket.socket]:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                sock = self._idle.pop()
            # Bytes, or an end, that nobody asked for: the server has closed it.
            if not select.select([sock], [], [], 0)[0]:
                return sock
            sock.close()

    def _keep(self, sock: socket.socket) -> bool:
        with self._lock:
            if self._closed or len(self._idle) >= self.max_idle:
                return False
            self._idle.append(sock)
            return True


def pause_after(decision: Decision) -> Optional[float]:
    """How long to wait after a refusal: as long as it says, and up to a tenth more, so that callers do not come back at once."""
    if decision.retry_after is None:
        return None
    return decision.retry_after * (1 + random.uniform(0, 0.1)) + random.uniform(0, 0.01)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


def connect(address: _wire.Address, context: Optional[ssl.SSLContext], end: float) -> socket.socket:
    """A connection to the server, made before ``end``."""
    failed: Optional[OSError] = None
    for family, kind, protocol, _, place in _resolve(address, end):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(end))
            sock.connect(place)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                return sock
            sock.settimeout(_left(end))
            return context.wrap_socket(sock, server_hostname=address.host)
        except OSError as error:
            sock.close()
            failed = error
    raise failed or OSError("the name has no address")


def _resolve(address: _wire.Address, end: float) -> List[Any]:
    """Like getaddrinfo, which has no timeout of its own and may wait for a name server for half a minute."""
    found: List[Any] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    if _is_literal(address.host):
        look()
    else:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(_left(end))
    if not found:
        raise socket.timeout("timed out looking up the name")
    if isinstance(found[0], UnicodeError):
        raise OSError(f"not a host name: {found[0]}")
    if isinstance(found[0], BaseException):
        raise found[0]
    return list(found[0])


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return True


def as_failure(error: OSError, address: _wire.Address, deadline: float) -> TidegateError:
    """An error of the operating system, in words of ours."""
    if isinstance(error, ssl.SSLError):
        hint = "ca_file names the authority that signed its certificate"
        return Unavailable(f"cannot trust {address}: {error}; {hint}", "tls")
    if isinstance(error, (socket.timeout, TimeoutError)):
        return Unavailable(f"{address} did not answer within {deadline:g} s", "timeout")
    return Unavailable(f"cannot reach {address}: {error}", "unreachable")
