"""What would be published of each client: a wheel, an npm package, a pom. Built, looked into, and used; nothing is sent anywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import xml.etree.ElementTree
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import List

from world import ROOT, clean_env

CLIENTS = ROOT / "clients"
VERSION = "0.1.0"


class Packages(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def printed(self, command: List[str], cwd: Path, **env: str) -> str:
        ran = subprocess.run(command, cwd=cwd, env=clean_env(**env), capture_output=True, text=True, timeout=600)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_wheel_has_the_package_its_types_and_its_licence(self) -> None:
        # A build leaves files beside its sources.
        sources = shutil.copytree(CLIENTS / "python", self.folder / "python")
        quiet = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        self.printed([sys.executable, "-m", "pip", "wheel", *quiet, "-w", str(self.folder), str(sources)], self.folder)
        wheel = self.folder / f"tidegate-{VERSION}-py3-none-any.whl"
        with zipfile.ZipFile(wheel) as files:
            names = files.namelist()
            metadata = Parser().parsestr(files.read(f"tidegate-{VERSION}.dist-info/METADATA").decode())
            licence = files.read(f"tidegate-{VERSION}.dist-info/licenses/LICENSE")
        for name in ("tidegate/__init__.py", "tidegate/py.typed", "tidegate/asgi.py"):
            self.assertIn(name, names)
        self.assertFalse([name for name in names if "test" in name])
        self.assertEqual(licence, (ROOT / "LICENSE").read_bytes())
        said = [metadata[name] for name in ("Name", "Version", "License-Expression", "Requires-Python")]
        self.assertEqual(said, ["tidegate", VERSION, "Apache-2.0", ">=3.9"])
        self.assertTrue(metadata.get_payload().startswith("# tidegate for Python"), "the README is not in it")
        # A wheel is a folder of modules in an archive.
        code = "import tidegate; print(tidegate.__version__, tidegate.__file__)"
        used = self.printed([sys.executable, "-c", code], self.folder, PYTHONPATH=str(wheel))
        self.assertEqual(used.split(), [VERSION, str(wheel / "tidegate/__init__.py")])

    def test_python_types_are_strict(self) -> None:
        cache = ["--cache-dir", str(self.folder / "mypy")]
        self.printed([sys.executable, "-m", "mypy", *cache], CLIENTS / "python")

    def test_npm_package_has_what_its_exports_name(self) -> None:
        # `npm test` has built it.
        pack = ["npm", "pack", "--json", "--ignore-scripts", "--pack-destination", str(self.folder)]
        packed = json.loads(self.printed(pack, CLIENTS / "node"))[0]
        self.assertEqual((packed["name"], packed["version"]), ("tidegate", VERSION))
        with tarfile.open(self.folder / packed["filename"]) as files:
            files.extractall(self.folder, filter="data")
        package = self.folder / "package"
        self.assertEqual((package / "LICENSE").read_bytes(), (ROOT / "LICENSE").read_bytes())
        self.assertTrue((package / "README.md").is_file())
        self.assertFalse((package / "test").exists())
        exports = json.loads((package / "package.json").read_text())["exports"]
        missing = [path for one in exports.values() for path in one.values() if not (package / path).is_file()]
        self.assertEqual(missing, [])
        package.rename(self.folder / "tidegate")
        (self.folder / "node_modules").mkdir()
        (self.folder / "tidegate").rename(self.folder / "node_modules/tidegate")
        code = 'import { Client } from "tidegate"; import { rateLimit } from "tidegate/express"; console.log(typeof Client, typeof rateLimit)'
        used = self.printed(["node", "--input-type=module", "-e", code], self.folder)
        self.assertEqual(used.split(), ["function", "function"])

    def test_pom_has_what_maven_central_asks_for(self) -> None:
        maven = "{http://maven.apache.org/POM/4.0.0}"
        project = xml.etree.ElementTree.parse(CLIENTS / "java/pom.xml").getroot()
        self.assertEqual(project.tag, maven + "project")
        wanted = ["modelVersion", "groupId", "artifactId", "version", "name", "description", "url"]
        wanted += ["licenses/license/name", "licenses/license/url", "developers/developer/name", "scm/url", "scm/connection"]
        for path in wanted:
            with self.subTest(path):
                found = project.find("/".join(maven + name for name in path.split("/")))
                self.assertTrue(found is not None and (found.text or "").strip())
        self.assertEqual(project.findtext(maven + "version"), VERSION)
        scopes = [one.findtext(maven + "scope") for one in project.iter(maven + "dependency")]
        self.assertEqual(scopes, ["provided"], "no dependency beyond the framework")

    def test_every_client_has_the_licence(self) -> None:
        for client in ("go", "java", "node", "python"):
            self.assertEqual((CLIENTS / client / "LICENSE").read_bytes(), (ROOT / "LICENSE").read_bytes(), client)


if __name__ == "__main__":
    unittest.main()
