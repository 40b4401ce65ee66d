"""What the tests of pages and gateways share: the real tidegate, and where other programs are."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> str:
    """A program or package that `cargo xtask tools` finds or installs."""
    named = os.environ.get("TIDEGATE_TOOL_" + name.upper().replace("-", "_"))
    found = named or shutil.which(name)
    assert found, f"{name} is missing: run `cargo xtask clients pages`"
    return found


def binary() -> str:
    return os.environ.get("TIDEGATE_BINARY") or str(ROOT / "target/debug/tidegate")


def clean_env(**more: str) -> Dict[str, str]:
    """The environment without our variables: tidegate takes one that it does not know for a mistake."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}, **more}


class Tidegate:
    """A server on free ports, gone with `stop`. `addresses` has host and port by listener."""

    def __init__(self, folder: Path, arguments: List[str], listeners: List[str]) -> None:
        free = [word for name in listeners if name != "proxy" for word in (f"--{name}", "127.0.0.1:0")]
        off = [word for name in ("http", "grpc", "resp") if name not in listeners for word in (f"--{name}", "off")]
        # Each its own database: two servers cannot share one.
        data = ["--data", str(folder / f"data-{id(self)}")]
        self._process = subprocess.Popen(
            [binary(), "serve", *arguments, *free, *off, *data], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=clean_env(),
        )
        self.addresses: Dict[str, str] = {}
        assert self._process.stdout is not None
        while len(self.addresses) < len(listeners):
            line = self._process.stdout.readline()
            assert line, "tidegate ended before it listened"
            if line.startswith("listening "):
                _, name, address = line.split()
                self.addresses[name] = address
        self._rest = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._rest.start()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._rest.join()
