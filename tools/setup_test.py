"""setup and fetch_sentencepiece, broken off and run again, with stand-ins for pip and the package servers."""

import os
import pathlib
import shutil
import subprocess
import tarfile

import pytest

TOOLS = pathlib.Path(__file__).parent
# Python of an environment: notes each `pip install`, and fails where the requirements say so.
PYTHON = """#!/bin/sh
case "$*" in *"pip install"*) echo installed >>"$LOG" && ! grep -q fails requirements.txt ;; esac
"""
ALL_INSTALLED = """#!/bin/bash
for package; do printf '%s:installed ' "$package"; done
"""


def program(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(root: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the stand-ins of root/bin before all other programs."""
    environment = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "LOG": str(root / "log")}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_packages_are_installed_again_after_an_upgrade_that_broke_off(tmp_path: pathlib.Path) -> None:
    program(tmp_path / "bin" / "dpkg-query", ALL_INSTALLED)
    program(tmp_path / ".venv" / "bin" / "python", PYTHON)
    (tmp_path / ".venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "setup", tmp_path / "tools" / "setup")
    codes = []
    for requirement in ("torch==2.11.0", "torch==2.11.0", "fails==2.12.0", "torch==2.11.0"):
        (tmp_path / "requirements.txt").write_text(requirement + "\n")
        codes.append(run(tmp_path, "tools/setup").returncode)
    assert codes == [0, 0, 1, 0]
    assert (tmp_path / "log").read_text().split() == ["installed"] * 3


class Server:
    """Package server with a version of sentencepiece: its source, and a patch to it."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.folder = root / "fetched"

    def serve(self, version: str, patched: str) -> None:
        """patched: the line that the patch expects and replaces."""
        parts = self.root / "parts"
        shutil.rmtree(parts, ignore_errors=True)
        (parts / "sentencepiece" / "src").mkdir(parents=True)
        (parts / "sentencepiece" / "src" / "normalizer.cc").write_text(f"of {version}\n")
        (parts / "debian" / "patches").mkdir(parents=True)
        (parts / "debian" / "patches" / "series").write_text("fix.patch\n")
        change = f"--- a/src/normalizer.cc\n+++ b/src/normalizer.cc\n@@ -1 +1 @@\n-{patched}\n+{patched}, patched\n"
        (parts / "debian" / "patches" / "fix.patch").write_text(change)
        for name, part in (("orig", "sentencepiece"), ("debian", "debian")):
            with tarfile.open(parts / f"sentencepiece_{version}.{name}.tar.gz", "w:gz") as archive:
                archive.add(parts / part, arcname=part)
        program(self.root / "bin" / "dpkg-query", f"#!/bin/sh\necho {version}\n")
        program(self.root / "bin" / "apt-get", f'#!/bin/sh\ncase "$*" in *download*) cp {parts}/*.tar.gz . ;; esac\n')

    def fetch(self) -> int:
        return run(self.root, str(TOOLS / "fetch_sentencepiece"), str(self.folder)).returncode

    def source(self) -> str:
        return (self.folder / "source" / "src" / "normalizer.cc").read_text()


@pytest.mark.skipif(not shutil.which("patch"), reason="patch is not installed, which tools/setup --fuzz does")
def test_the_source_of_sentencepiece_is_whole_and_of_the_version_that_is_installed(tmp_path: pathlib.Path) -> None:
    server = Server(tmp_path)
    server.serve("1.0", patched="another line")
    assert server.fetch() != 0
    assert not (server.folder / "source").exists()
    server.serve("1.0", patched="of 1.0")
    assert server.fetch() == 0
    assert server.source() == "of 1.0, patched\n"
    server.serve("1.1", patched="of 1.1")
    assert server.fetch() == 0
    assert server.source() == "of 1.1, patched\n"
