"""A real browser for the tests of pages, by the DevTools protocol and the standard library alone."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser's path; None where there is none."""


class Browser:
    """A headless browser, driven by the DevTools protocol over a pair of pipes."""

    def __init__(self, program, profile) -> None:
        (command_in, self._out), (self._in, reply_out) = ([_high(end) for end in os.pipe()] for _ in range(2))

        def connect():
            os.dup2(command_in, 3)
            os.dup2(reply_out, 4)

        switches = ["headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking"]
        switches += ["disable-component-update", "no-first-run", "remote-debugging-pipe", f"user-data-dir={profile}"]
        command = [program, *[f"--{switch}" for switch in switches], "about:blank"]
        self._process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(command_in)
        os.close(reply_out)
        self._unread, self._calls, self.events = b"", 0, []

    def call(self, method, session=None, **params):
        """The result of one command; events that come before it are kept."""
        self._calls += 1
        about = {"sessionId": session} if session else {}
        command = {"id": self._calls, "method": method, "params": params, **about}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self.receive()).get("id") != self._calls:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def receive(self):
        while b"\0" not in self._unread:
            assert select.select([self._in], [], [], 30)[0], "the browser is silent"
            arrived = os.read(self._in, 1 << 16)
            assert arrived, "the browser has ended"
            self._unread += arrived
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def close(self):
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)


def _high(end):
    """A descriptor out of the way of 3 and 4, which the browser takes for its pipes."""
    copy = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return copy


class Tab:
    """One page in the browser."""

    def __init__(self, browser, url, **emulated) -> None:
        self._browser, self._known = browser, len(browser.events)
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        features = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in emulated.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.resize(900, 1000)
        self.call("Page.navigate", url=url)
        while not self.events("Page.loadEventFired"):
            browser.events.append(browser.receive())

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def events(self, method):
        mine = [event for event in self._browser.events[self._known :] if event.get("sessionId") == self._session]
        return [event["params"] for event in mine if event["method"] == method]

    def evaluate(self, script):
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def resize(self, width, height, **more):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False, **more}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def press(self, key, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": text} if kind == "keyDown" else {}))

    def text(self, selector):
        return self.evaluate(f"document.querySelector({selector!r}).textContent")

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
