"""A headless Chromium that a test drives as a user would: pages are opened, keys typed and buttons clicked.

Chromium is spoken to by its DevTools protocol through two pipes (--remote-debugging-pipe): JSON texts, each ended by a zero byte.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Puts the pipes where Chromium expects them.
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
SECONDS = 120


def high(descriptor: int) -> int:
    """The same pipe above the descriptors that LAUNCH replaces."""
    result = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return result


class Browser:
    def __init__(self, folder: Path):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            pytest.skip("needs Chromium: apt-get install chromium")
        child_in, self.output = map(high, os.pipe())
        self.input, child_out = map(high, os.pipe())
        flags = [
            "--headless=new",
            "--window-size=1280,900",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]
        flags += [f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        words = [sys.executable, "-c", LAUNCH, str(child_in), str(child_out), program, *flags]
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(words, pass_fds=(child_in, child_out), stdout=self.log, stderr=self.log)
        os.close(child_in)
        os.close(child_out)
        self.count, self.held = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self.output, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            answer = self.receive(end - time.monotonic())
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self.held:
            assert select.select([self.input], [], [], max(end - time.monotonic(), 0))[0], "Chromium does not answer"
            piece = os.read(self.input, 1 << 16)
            assert piece, "Chromium has ended"
            self.held += piece
        text, _, self.held = self.held.partition(b"\0")
        return json.loads(text)

    def page(self, url: str) -> "Page":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], url)

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
        self.log.close()


class Page:
    def __init__(self, browser: Browser, session: str, url: str):
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # whatever other page was opened before
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def value(self, expression: str) -> Any:
        """The value of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        code = {"Enter": 13}[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": "\r", "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{**event, "text": ""})

    def click(self, selector: str) -> None:
        """The middle of an element, where a mouse would hit it."""
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
        where = f"JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect())"
        box = json.loads(self.value(where))
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def events(self, method: str) -> list[dict[str, Any]]:
        """Events of this kind so far."""
        self.value("0")  # what has happened before this has been heard of
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event["method"] == method]
