"""A headless Chromium that is spoken to over pipes: pages at a width, light, dark or printed;
pictures; axe-core.

The DevTools protocol is JSON messages, each ended by a NUL, on file descriptors 3 (to the browser)
and 4 (from it).
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
AXE = Path(__file__).resolve().parents[1] / "pages" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
CHUNK = 1 << 20
LAYOUT_SHIFTS = """new Promise((done) => {
  const seen = [];
  const observer = new PerformanceObserver((list) => seen.push(...list.getEntries()));
  observer.observe({type: 'layout-shift', buffered: true});
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
    seen.push(...observer.takeRecords());
    const name = (node) => node === null ? '?' : node.outerHTML || node.textContent;
    done(seen.map((shift) => `${shift.value.toFixed(4)}: ` +
      shift.sources.map((source) => name(source.node).slice(0, 120)).join(' | ')));
  }, 50)));
})"""


class Browser:
    """One tab."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._left = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self._events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        self.ask("Page.enable")
        self.ask("Network.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        text = json.dumps(message | ({"sessionId": self._session} if self._session else {}))
        left = text.encode() + b"\0"
        while left:
            left = left[os.write(self._send, left) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            chunk = os.read(self._receive, CHUNK)
            assert chunk, "the browser ended"
            self._left += chunk
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)

    def _wait(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._next())

    def look(
        self, width: int, scheme: str = "light", *, printed: bool = False, height: int = 900
    ) -> None:
        """Look at pages at a width, in a scheme of colors, or as printed."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media="print" if printed else "", features=features)

    def sign_in(self, token: str) -> None:
        """Send a reader's token with every request; empty: none."""
        self.ask(
            "Network.setExtraHTTPHeaders",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def open(self, address: str) -> None:
        """Load a page and wait until it is there."""
        self._events.clear()
        answer = self.ask("Page.navigate", url=address)
        assert "errorText" not in answer, answer
        self._wait("Page.loadEventFired")

    def watch(self) -> None:
        """Keep what a console would show, and load everything from the network."""
        self.ask("Log.enable")
        self.ask("Runtime.enable")
        self.ask("Network.setCacheDisabled", cacheDisabled=True)

    def run_scripts(self, *, allowed: bool) -> None:
        """Whether the scripts of pages run; those of `evaluate` do."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not allowed)

    def complaints(self) -> list[str]:
        """Since the page was opened: errors and warnings of the console (violations of its policy
        among them), exceptions, and answers that are errors.
        """
        found = []
        for event in self._events:
            values = event.get("params", {})
            match event.get("method"):
                case "Log.entryAdded" if values["entry"]["level"] in {"error", "warning"}:
                    found.append(values["entry"]["text"])
                case "Runtime.consoleAPICalled" if values["type"] in {"error", "warning", "assert"}:
                    found.append(str(values["args"]))
                case "Runtime.exceptionThrown":
                    found.append(str(values["exceptionDetails"]))
                case "Network.responseReceived" if values["response"]["status"] >= 400:
                    found.append(f"{values['response']['status']} {values['response']['url']}")
        return found

    def bytes_loaded(self) -> int:
        """Bytes that came over the wire since the page was opened, heads of answers included."""
        return sum(
            int(event["params"]["encodedDataLength"])
            for event in self._events
            if event.get("method") == "Network.loadingFinished"
        )

    def layout_shifts(self) -> list[str]:
        """What has moved since the page was opened, once two more frames are drawn."""
        return self.evaluate(LAYOUT_SHIFTS)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of a promise; a page's own policy does not restrict it."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def overhang(self) -> int:
        """By how many pixels the page is wider than the window."""
        return self.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def violations(self) -> list[str]:
        """What axe-core finds wrong, a line for each rule and element."""
        self.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.evaluate(
            "axe.run({resultTypes: ['violations']}).then((answer) => answer.violations)"
        )
        return [
            f"{rule['id']}: {node['failureSummary'].splitlines()[-1].strip()} {node['html'][:160]}"
            for rule in found
            for node in rule["nodes"]
        ]

    def picture(self, file: Path) -> None:
        """The entire page as PNG."""
        answer = self.ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, fromSurface=True
        )
        file.write_bytes(base64.b64decode(answer["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"])


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser until the block ends."""
    to_browser, send = os.pipe()
    receive, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The shell renames the descriptors: 3 and 4 may be anything's in this process.
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        arguments = (
            "bash",
            "-c",
            command,
            "bash",
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={profile}",
        )
        process = subprocess.Popen(
            arguments,
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Browser(send, receive)
        finally:
            os.close(send)
            os.close(receive)
            process.terminate()
            process.wait(20)
