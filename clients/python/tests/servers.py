"""The real tidegate, and servers that misbehave."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Optional

TESTING = Path(__file__).resolve().parents[2] / "testing"
TOKEN = "a-token-of-the-tests-0001"


def binary() -> Path:
    named = os.environ.get("TIDEGATE_BINARY")
    path = Path(named) if named else TESTING.parents[1] / "target/debug/tidegate"
    if not path.exists():
        raise AssertionError(f"{path} is missing: run `cargo build -p tidegate-cli`, or set TIDEGATE_BINARY")
    return path


class Tidegate:
    """A server on free ports. ``extra`` is YAML of its configuration."""

    def __init__(self, extra: str = "", scheme: str = "http") -> None:
        self._dir = tempfile.TemporaryDirectory()
        config = Path(self._dir.name) / "tidegate.yaml"
        listen = "listen: { http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }\n"
        config.write_text(f"{listen}rules: {{ paths: ['{TESTING / 'rules.yaml'}'] }}\ndata: '{self._dir.name}/data'\n{extra}")
        self.process = subprocess.Popen(
            [str(binary()), "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A variable of that name that it does not know is an error.
            env={name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")},
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening http "):
                self.url = f"{scheme}://{line.split()[2]}"
                break
        else:
            raise AssertionError("tidegate ended before it listened")
        # It may print more, and must not wait for a reader.
        self._rest = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._rest.start()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._rest.join()
        self.process.stdout.close()
        self._dir.cleanup()


def certificate(folder: str, name: str) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = f"{folder}/{name}.pem", f"{folder}/{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        + ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


class Silent:
    """Takes connections and never answers; with ``says``, sends that a byte at a time, without an end."""

    def __init__(self, says: Optional[bytes] = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self.connections = 0
        self._says = says
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            if self._says is not None:
                threading.Thread(target=self._dribble, args=(connection, self._says), daemon=True).start()

    def _dribble(self, connection: socket.socket, says: bytes) -> None:
        stop = threading.Event()
        try:
            for byte in says:
                connection.sendall(bytes([byte]))
                stop.wait(0.01)
        except OSError:
            pass

    def received(self) -> list[bytes]:
        """What each connection sent."""
        return [connection.recv(65536) for connection in self._open]

    def stop(self) -> None:
        # A thread waits in accept: closing alone would leave the port open until it returns.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._open:
            connection.close()
