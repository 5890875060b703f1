"""The explorer's server: one page on this machine for who knows its address.

It listens on the loopback interface only, and answers to nobody who does not know its token, or who
calls it by another name (a page of another site that has its own name point to this machine). A
question names places of the settings it was given, and nothing else.
"""

from __future__ import annotations

import http.server
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from mpsim.errors import MpsimError
from mpsim.report.explorer import Explorer
from mpsim.result.words import Figures

HOST: Final = "127.0.0.1"  # the one interface it listens on

_LONGEST = 65_536  # bytes of a question
_SECRET = 16  # bytes of the token
_FRAMES = "frame-ancestors 'none'"


class Server(http.server.ThreadingHTTPServer):
    """Serves the page of an explorer. `port`: 0 for any that is free."""

    daemon_threads = True  # an answer under way does not hold up the end

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.explorer = explorer
        self.token = secrets.token_urlsafe(_SECRET)

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that was closed meanwhile is no error; others are told in one line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            sys.stderr.write(f"mpsim explore: {type(error).__name__}: {error}\n")

    @property
    def address(self) -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "mpsim", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # s that a connection may say nothing

    def do_GET(self) -> None:
        if self._known("") and self._may():
            self._send(200, "text/html; charset=utf-8", self.server.explorer.page())

    def do_POST(self) -> None:
        answers: Mapping[str, Callable[[Figures], object]] = {
            "answer": self._answer,
            "scenario": lambda asked: self.server.explorer.scenario_file(asked["places"]),
            "report": lambda asked: self.server.explorer.report(asked["places"]),
        }
        asked = self._read()
        name = self.path.rpartition("/")[2]
        if not (self._known(name if name in answers else "answer") and self._may()):
            return
        if asked is None:
            self._refuse(400, "needed a JSON object with places")
            return
        try:
            answer = answers[name](asked)
        except MpsimError as error:
            answer = {"error": str(error)}
        if isinstance(answer, str):
            self._send(200, "text/plain; charset=utf-8", answer)
        else:
            self._send(200, "application/json", json.dumps(answer, allow_nan=False))

    def _answer(self, asked: Figures) -> dict[str, object]:
        since = time.perf_counter()
        whole, tab = asked.get("whole") is True, str(asked.get("tab", ""))
        answer = self.server.explorer.answer(asked["places"], whole=whole, tab=tab)
        return {**answer, "seconds": time.perf_counter() - since}

    def _read(self) -> Figures | None:
        """The question; None if it is none."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LONGEST:
            self.close_connection = True
            return None
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None
        valid = isinstance(asked, dict) and isinstance(asked.get("places"), list)
        return asked if valid else None

    def _known(self, name: str) -> bool:
        """Whether the path has the token; all else is not found."""
        given = self.path.encode("utf-8", "replace")
        if secrets.compare_digest(given, f"/{self.server.token}/{name}".encode()):
            return True
        self._refuse(404, "not found")
        return False

    def _may(self) -> bool:
        """Whether it was called by its own name, and not from a page of another site."""
        own = f"{HOST}:{self.server.server_port}"
        origin = self.headers.get("Origin")
        if self.headers.get("Host") == own and origin in (None, f"http://{own}"):
            return True
        self._refuse(403, "asked for by another name")
        return False

    def _refuse(self, status: int, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text)

    def _send(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", _FRAMES),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing: the token is in every path."""
