"""Runs what docs/guides/clients.md and docs/coming-from show: rules are served, and blocks do what the page says.

- ``yaml`` that begins with ``domain:`` are the server's rules (docs/reference/example.yaml where a page has none).
- ``shell`` is run line by line by bash; the lines below a command are what it prints, where ``…`` stands for anything.
- ``python`` and ``js`` run as they are; what they print is what the page says next, as: prints `…`.
- ``java`` is a class `RateLimiter` whose `allowed` must admit.

(`shell` and not `console`: those blocks run against other rules, in the tests of the reference.) Addresses of the examples are exchanged for those of the server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import List, NamedTuple

from world import ROOT, Tidegate, binary, clean_env, tool

COMING_FROM = [page for page in (ROOT / "docs/coming-from").glob("*.md") if page.name != "README.md"]
PAGES = sorted([*COMING_FROM, ROOT / "docs/guides/clients.md"])


class Block(NamedTuple):
    language: str
    text: str
    #: The paragraph before it, and what it prints according to the one after it.
    before: str
    prints: str


def blocks(text: str) -> List[Block]:
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        before = text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
        after = re.match(r"\s*prints `([^`]*)`", text[match.end() :])
        found.append(Block(match[1], match[2], before, after[1] if after else ""))
    return found


def like(shown: str) -> str:
    """A pattern: a line of … alone stands for any lines, elsewhere … for any characters of one."""
    lines = []
    for line in shown.rstrip().split("\n"):
        lines.append(r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n")
    return "".join(lines)


class Pages(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def check(self, page: Path) -> int:
        found = blocks(page.read_text())
        rules = [block.text for block in found if block.language == "yaml" and block.text.startswith("domain:")]
        files = []
        for number, text in enumerate(rules):
            files.append(self.folder / f"rules-{number}.yaml")
            files[-1].write_text(text)
        files = files or [ROOT / "docs/reference/example.yaml"]
        arguments = [word for file in files for word in ("--rules", str(file))]
        self.server = Tidegate(self.folder, arguments, ["http", "resp", "admin"])
        try:
            return sum(self.run_block(block) for block in found)
        finally:
            self.server.stop()

    def run_block(self, block: Block) -> int:
        if "not run by a test" in block.before:
            return 0
        run = getattr(self, f"run_{block.language}", None)
        if run is None:
            self.assertIn(block.language, ("yaml", "toml", "text"), "a block that nothing runs")
            return 0
        run(block)
        return 1

    def pointed(self, text: str) -> str:
        http, resp = self.server.addresses["http"], self.server.addresses["resp"]
        for shown in ("localhost:8080", "127.0.0.1:8080"):
            text = text.replace(shown, http)
        port = resp.rsplit(":", 1)[1]
        text = re.sub(r"\bport([=:] ?)6380", rf"port\g<1>{port}", text)
        # A busy machine may take longer than a service should wait.
        text = text.replace("socket_timeout=0.25", "socket_timeout=20").replace("commandTimeout: 250", "commandTimeout: 20000")
        text = text.replace('on_failure="open"', 'on_failure="raise", deadline=20')
        text = text.replace('onFailure: "open"', 'onFailure: "throw", deadlineMs: 20000')
        text = text.replace(
            ".onFailure(Client.OnFailure.OPEN)",
            ".deadline(java.time.Duration.ofSeconds(20))",
        )
        return text.replace("-p 6380", f"-p {port}")

    def printed(self, command: List[str], cwd: Path, **env: str) -> str:
        tools = self.folder / "bin"
        if not tools.exists():
            tools.mkdir()
            (tools / "tidegate").symlink_to(Path(binary()).resolve())
            (tools / "redis-cli").symlink_to(tool("redis-cli"))
        path = f"{tools}:{os.environ['PATH']}"
        ran = subprocess.run(command, cwd=cwd, env=clean_env(PATH=path, **env), capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.stderr, "" if ran.returncode else ran.stderr, ran)
        return ran.stdout + ran.stderr

    def run_shell(self, block: Block) -> None:
        commands: List[List[str]] = []
        for line in block.text.rstrip("\n").split("\n"):
            if line.startswith("$ "):
                commands.append([line[2:], ""])
            else:
                commands[-1][1] += line + "\n"
        for command, shown in commands:
            printed = self.printed(["bash", "-c", self.pointed(command)], self.folder).rstrip() + "\n"
            self.assertRegex(printed, re.compile("^" + (like(shown) if shown else "") + "$"), command)

    def run_python(self, block: Block) -> None:
        script = self.folder / "block.py"
        script.write_text(self.pointed(block.text))
        printed = self.printed([sys.executable, str(script)], self.folder, PYTHONPATH=str(ROOT / "clients/python/src"))
        self.assertEqual(printed.strip(), block.prints or "True 99")

    def run_js(self, block: Block) -> None:
        module = "module" if block.text.startswith("import") else "commonjs"
        packages = str(Path(tool("ioredis")).parent)
        command = ["node", f"--input-type={module}", "-e", self.pointed(block.text)]
        printed = self.printed(command, ROOT / "clients/node", NODE_PATH=packages)
        self.assertEqual(printed.strip(), block.prints or "true 99")

    def run_java(self, block: Block) -> None:
        main = 'class Main { public static void main(String[] a) { System.out.println(new RateLimiter().allowed("42")); } }'
        (self.folder / "Main.java").write_text(self.pointed(block.text) + main)
        classes = str(ROOT / "target/java")
        javac = tool("javac")
        self.printed([javac, "-cp", classes, "-d", str(self.folder / "java"), "Main.java"], self.folder)
        java = [str(Path(javac).with_name("java")), "-cp", f"{classes}:{self.folder / 'java'}", "Main"]
        self.assertEqual(self.printed(java, self.folder).strip(), "true")


def case(page: Path):
    def test(self: Pages) -> None:
        self.assertGreater(self.check(page), 0, f"{page.name} shows nothing that runs")

    return test


for page in PAGES:
    setattr(Pages, f"test_{page.stem.replace('-', '_')}", case(page))


if __name__ == "__main__":
    unittest.main()
