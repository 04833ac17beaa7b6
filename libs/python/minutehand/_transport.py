"""Requests to the API, repeated safely."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from typing import Any

MAX_ANSWER = 64 << 20  # bytes
MAX_PAUSE = 10.0  # seconds between two attempts, unless the server asks for more
MAX_RETRY_AFTER = 60.0
MAX_IDLE = 32  # connections that are kept open


class Problem(Exception):
    """An answer that is none of success (RFC 9457)."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]] | None = None, retry_after: float = 0.0) -> None:
        lines = [f"  {e.get('pointer')}: {e.get('message')}" for e in errors or []]
        super().__init__("\n".join([detail, *lines]))
        self.status = status
        self.detail = detail
        self.errors = errors or []
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (429, 502, 503, 504)


class Unreachable(Exception):
    """There was no answer."""


def escaped(text: str) -> str:
    """A text as a segment of a path."""
    return urllib.parse.quote(text, safe=":")


class Transport:
    """Makes requests to a server.

    token is an API key or token, or a function that returns it; tenant is for whom requests are made, which only a credential of the
    installation may choose; context has the certificates of an https server.
    """

    def __init__(
        self,
        server: str = "http://127.0.0.1:8080",
        *,
        token: str | Callable[[], str] | None = None,
        tenant: str | None = None,
        context: ssl.SSLContext | None = None,
        timeout: float = 60.0,
        attempts: int = 5,
    ) -> None:
        parts = urllib.parse.urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server must be a URL such as http://127.0.0.1:8080, not {server!r}")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._base = parts.path.rstrip("/") + "/api/v1"
        self._token = token
        self._tenant = tenant
        self._context = context
        self._timeout = timeout
        self._attempts = attempts
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        kind: str = "application/json",
        query: Mapping[str, Any] | None = None,
        if_match: str | None = None,
        keyed: bool = False,
        idempotency_key: str | None = None,
        once: bool = False,
        attempts: int | None = None,
        timeout: float | None = None,
        watch: Callable[[http.client.HTTPConnection | None], None] | None = None,
    ) -> Any:
        """Makes a request, as often as it may be repeated, and returns the decoded answer.

        timeout bounds each attempt, in seconds. watch is told the connection while the request is made, and None after it.
        """
        headers = self._headers(if_match)
        if body is not None:
            headers["Content-Type"] = kind
        if keyed:
            headers["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        address = self._base + path + ("?" + urllib.parse.urlencode(parameters) if parameters else "")
        payload = None if body is None else json.dumps(body, allow_nan=False).encode()  # JSON has no NaN: the server would refuse it
        # A job's key may be another job's by the time a deletion is repeated.
        once = (once and if_match != "*") or (method == "DELETE" and path.startswith("/jobs/key:"))
        if once:
            self.close()  # the server may have closed a connection that was idle
        attempt = 1
        while True:
            try:
                return self._send(method, address, payload, headers, timeout or self._timeout, watch or ignore)
            except (Problem, Unreachable) as e:
                wait = 0.0
                if isinstance(e, Problem):
                    if not e.passing:
                        raise
                    wait = min(e.retry_after, MAX_RETRY_AFTER)
                if once or attempt >= (attempts or self._attempts):
                    raise
                pause = min(0.1 * 2 ** (attempt - 1), MAX_PAUSE)
                time.sleep(max(wait, pause / 2 + random.random() * pause / 2))
                attempt += 1

    def _headers(self, if_match: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        token = self._token() if callable(self._token) else self._token
        if token:
            headers["Authorization"] = "Bearer " + token
        if self._tenant:
            headers["Minutehand-Tenant"] = self._tenant
        if if_match:
            headers["If-Match"] = if_match
        return headers

    def _send(
        self,
        method: str,
        address: str,
        payload: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        watch: Callable[[http.client.HTTPConnection | None], None],
    ) -> Any:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._connect()
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        watch(connection)
        try:
            connection.request(method, address, body=payload, headers=dict(headers))
            answer = connection.getresponse()
            text = answer.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            self.close()  # those that are idle are as old as this one, or older
            raise Unreachable(f"no answer from {self._host}: {e}") from e
        finally:
            watch(None)
        if len(text) > MAX_ANSWER:
            connection.close()
            raise Unreachable(f"the answer has more than {MAX_ANSWER} bytes")
        with self._lock:
            kept = len(self._idle) < MAX_IDLE
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()
        if not 200 <= answer.status < 300:
            raise problem(answer, text)
        try:
            return json.loads(text) if text else None
        except ValueError as e:
            raise Unreachable("the answer is not JSON: is this the API?") from e

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def close(self) -> None:
        """Closes the connections that are idle; requests open others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def ignore(connection: http.client.HTTPConnection | None) -> None:
    """Watches nothing."""


def interrupt(connection: http.client.HTTPConnection) -> None:
    """Ends the request that another thread makes on a connection: it raises Unreachable there."""
    sock: socket.socket | None = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            # Not that of an SSLSocket, which would go on in plain text.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def problem(answer: http.client.HTTPResponse, text: bytes) -> Problem:
    try:
        found = json.loads(text)
        detail, errors = str(found["detail"]), found.get("errors")
    except (ValueError, KeyError, TypeError):
        detail, errors = f"the server answered {answer.status} {answer.reason}", None
    try:
        retry_after = float(answer.headers.get("Retry-After") or 0)
    except ValueError:
        retry_after = 0.0
    return Problem(answer.status, detail, errors, retry_after)
