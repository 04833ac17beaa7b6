"""A worker: it fetches the tasks of a pool and runs them."""

from __future__ import annotations

import datetime
import http.client
import json
import logging
import math
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ._transport import Problem, Unreachable, escaped, interrupt
from .client import Client

log = logging.getLogger("minutehand")

MAX_CONCURRENCY = 256
MAX_TASKS = 32  # of a poll
POLL_WAIT = 20  # seconds
ROOM_WAIT = 1.0  # seconds for which a worker without room waits for some before it asks what was cancelled
SAME_POLL = 50.0  # seconds for which a poll may be repeated under its id
END_FOR = 120.0  # seconds for which a worker tries to tell how a task ended
MAX_ERROR = 4096  # characters
BEATS_IN_TIMEOUT = 3  # heartbeats
BEATS_AT_ONCE = 8
TOO_SOON = 0.5  # seconds after which a poll that waits is not answered yet without a reason
END_TRY = 15.0  # seconds for an attempt to tell how a task ended
STUBBORN = 10.0  # seconds for which a handler may go on after the worker has told it to stop
MAX_RESULT = 64 << 10  # bytes
LOOK_EVERY = 0.5  # seconds between two looks which heartbeats are due


class Stopped(Exception):
    """The task is to be stopped: raised by Task.checkpoint and Task.check."""


class Cancelled(Stopped):
    """The execution was cancelled, or has taken as long as it may."""


class Lost(Stopped):
    """The task is no longer this worker's."""


class Permanent(Exception):
    """Raise it in a handler if no further attempt can succeed."""


class Retry(Exception):
    """Raise it in a handler to ask for another attempt not before a pause, in seconds."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = float(after)  # what is no number is an error of the handler, where it is raised


class Drained(Stopped):
    """The worker ends, and gives the task back."""


class Task:
    """What a handler works on."""

    def __init__(self, worker: Worker, raw: dict[str, Any]) -> None:
        self.id: str = raw["task_id"]
        self.execution_id: str = raw["execution_id"]
        self.attempt: int = raw["attempt"]
        self.job_id: str = raw["job_id"]
        self.handler: str = raw["handler"]
        #: It grows with each time that the execution is handed out: store it beside what you write.
        self.fencing_token: str = raw["fencing_token"]
        #: The same for all attempts of the execution.
        self.idempotency_key: str = raw["idempotency_key"]
        self.headers: dict[str, str] = raw.get("headers") or {}
        self.payload: Any = raw.get("payload")
        self.payload_ref = raw.get("payload_ref")  # url and sha256 of the object in its place, which the handler fetches
        #: The last checkpoint of the execution, also that of an earlier attempt; None if there is none.
        self.progress: Any = raw.get("progress")
        self.scheduled_for: str = raw["scheduled_for"]
        self.nominal_at: str = raw["nominal_at"]
        #: What is kept with the attempt when the handler returns or raises: any JSON, of which the first 12,288 bytes are kept.
        self.result: Any = None
        self._worker = worker
        self._timeout = seconds(raw["heartbeat_timeout"])
        self._until = time.monotonic() + self._timeout
        self._stopped: Stopped | None = None
        self._next_beat = time.monotonic() + self._timeout / BEATS_IN_TIMEOUT
        self._beating = threading.Lock()
        self._told = 0
        # The server tells that the task has taken too long, if it is asked then.
        self._ends = time.monotonic() + (instant(raw["ends_at"]) - time.time()) + 1.0

    @property
    def stopped(self) -> bool:
        """Whether the task was cancelled or is lost."""
        return self._stopped is not None

    def check(self) -> None:
        """Raises Cancelled or Lost if the task is to be stopped."""
        if self._stopped is not None:
            raise self._stopped

    def checkpoint(self, progress: Any) -> None:
        """Stores how far the task has come, as JSON of at most 64 KiB, and raises Cancelled or Lost if it is to be stopped.

        It is durable when checkpoint returns, and the next attempt finds it as progress.
        """
        self.check()
        self._beat(progress, patient=True)
        self.progress = progress
        self.check()

    def _beat(self, progress: Any = None, patient: bool = False) -> None:
        """Sends a heartbeat; a patient one until it is answered."""
        with self._beating:
            body: dict[str, Any] = {}
            if progress is not None:
                # A try that comes late, after a later checkpoint, must not take its place.
                self._told += 1
                body = {"progress": progress, "sequence": self._told}
            while True:
                began = time.monotonic()
                wait = min(self._timeout / BEATS_IN_TIMEOUT, max(self._until - began, 0.1))
                try:
                    answer = self._worker.tell(self, "heartbeat", body, timeout=wait)
                    break
                except (Problem, Unreachable) as e:
                    over = time.monotonic() >= self._until
                    if over or (isinstance(e, Problem) and e.status in (404, 409)):
                        self._stopped = Lost("the task is no longer this worker's")
                        return
                    if not patient or (isinstance(e, Problem) and not e.passing):
                        raise
                time.sleep(0.5)
            if answer["cancelled"] and self._stopped is None:
                self._stopped = Cancelled("the execution was cancelled" if answer.get("reason") != "timeout" else "the task has taken too long")
            self._until = began + self._timeout

    def _keep(self) -> None:
        """Sends a heartbeat."""
        try:
            self._beat()
        except (Problem, Unreachable) as e:
            log.warning("cannot tell that a task still runs: %s", e)
            self._next_beat = time.monotonic() + LOOK_EVERY


class Worker:
    """Runs the tasks of a pool by functions, of which each takes a Task.

    A task is done when its function returns; if it raises, it is tried again as the retry policy of its job says. The same task may come again,
    so it must do no harm when it is repeated.
    """

    def __init__(self, client: Client, pool: str, *, concurrency: int = 8, name: str | None = None, version: str = "") -> None:
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"a worker runs between 1 and {MAX_CONCURRENCY} tasks at a time")
        self._client = client
        self._pool = pool
        self._concurrency = concurrency
        self._name = name or f"{socket.gethostname()[:200]}/{secrets.token_hex(4)}"
        self._version = version
        self._handlers: dict[str, Callable[[Task], Any]] = {}
        self._running: dict[str, Task] = {}
        self._lock = threading.Lock()
        self._freed = threading.Event()
        self._stop = threading.Event()
        self._over = threading.Event()
        self._stopping = False
        self._last = False  # the poll is the last one, which does not wait
        self._polling: http.client.HTTPConnection | None = None

    def handle(self, handler: str) -> Callable[[Callable[[Task], Any]], Callable[[Task], Any]]:
        """Decorates the function that runs the tasks of a handler. What it returns is the result of the task."""

        def decorate(run: Callable[[Task], Any]) -> Callable[[Task], Any]:
            self._handlers[handler] = run
            return run

        return decorate

    def stop(self) -> None:
        """Lets run return when the tasks have ended that run. May be called from a handler of a signal."""
        self._stopping = True  # the thread of the heartbeats wakes whoever waits: an event has a lock, which a signal must not wait for

    def run(self, drain: float = 30.0) -> None:
        """Fetches and runs tasks until stop is called, then waits up to drain seconds for those that run."""
        if not self._handlers:
            raise ValueError("a worker needs at least one handler")
        # Threads that stay keep their connections.
        tasks = ThreadPoolExecutor(self._concurrency, "task")
        beats = ThreadPoolExecutor(BEATS_AT_ONCE, "heartbeat")
        keeper = threading.Thread(target=self._keep, args=(beats,), name="heartbeats", daemon=True)
        keeper.start()
        try:
            try:
                self._fetch(tasks)
            finally:
                self._drain(drain)
        finally:
            self._over.set()
            keeper.join()
            tasks.shutdown(wait=False)
            beats.shutdown(wait=False)

    def _keep(self, beats: ThreadPoolExecutor) -> None:
        """Sends heartbeats as they are due, and interrupts a poll that waits while the worker is to end, until it has ended."""
        while not self._over.wait(LOOK_EVERY):
            if self._stopping:
                self._stop.set()
            polling = self._polling
            if self._stopping and not self._last and polling is not None:
                interrupt(polling)
            with self._lock:
                running = list(self._running.values())
            for task in running:
                if time.monotonic() >= task._next_beat and not isinstance(task._stopped, Lost):
                    if task._beating.locked():
                        continue  # a checkpoint is told, which is one too
                    task._next_beat = time.monotonic() + task._timeout / BEATS_IN_TIMEOUT
                    if time.monotonic() < task._ends:
                        task._next_beat = min(task._next_beat, task._ends)
                    beats.submit(task._keep)

    def _fetch(self, tasks: ThreadPoolExecutor) -> None:
        poll: dict[str, Any] | None = None
        began, failed = 0.0, 0
        while not self._stopping:
            if poll is None or time.monotonic() - began > SAME_POLL:
                poll, began = self._next(), time.monotonic()
                if poll is None:
                    continue
            sent = time.monotonic()
            try:
                answer = self._ask(poll)
            except (Problem, Unreachable) as e:
                if isinstance(e, Problem) and 400 <= e.status < 500 and not e.passing:
                    raise
                if not self._stopping:
                    log.warning("cannot fetch tasks: %s", e)
                self._stop.wait(min(0.5 * 2 ** min(failed, 6), 30.0))
                failed += 1
                continue
            self._take(answer, failed > 0, tasks)
            if poll["max"] and not answer["tasks"] and not answer["cancelled"] and time.monotonic() - sent < TOO_SOON:
                self._stop.wait(TOO_SOON)  # the server has no room for polls that wait
            poll, failed = None, 0
        self._last = True
        if poll is not None and poll["max"]:  # what it was given, if its answer was lost
            try:
                for raw in self._ask({**poll, "wait": "0s"}, attempts=3)["tasks"]:
                    self._end(Task(self, raw), "release", {})
            except (Problem, Unreachable) as e:
                log.warning("cannot learn what the last poll was given: %s", e)

    def _drain(self, drain: float) -> None:
        """Waits for the tasks that run. Those that do not end in time are told to stop, and are given back by their own threads."""
        self._wait(drain)
        with self._lock:
            running = list(self._running.values())
        for task in running:
            task._stopped = task._stopped or Drained("the worker ends")
        self._wait(STUBBORN)
        if self._running:
            log.warning("%d handlers go on although they were told to stop", len(self._running))

    def _wait(self, most: float) -> None:
        deadline = time.monotonic() + most
        while self._running and time.monotonic() < deadline:
            self._freed.clear()
            self._freed.wait(0.2)

    def _next(self) -> dict[str, Any] | None:
        """The next poll. Without room for a task it only learns what was cancelled, after it has waited for room."""
        self._freed.clear()
        with self._lock:
            room = self._concurrency - len(self._running)
        if room == 0 and not self._stopping:
            self._freed.wait(ROOM_WAIT)
        with self._lock:
            running = [task.id for task in self._running.values()]
        if self._stopping:
            return None
        room = self._concurrency - len(running)
        return {
            "poll_id": secrets.token_hex(16),
            "worker": self._name,
            "version": self._version,
            "handlers": sorted(self._handlers),
            "max": min(room, MAX_TASKS),
            "wait": f"{POLL_WAIT if room else 0}s",
            "running": sorted(set(running)),
        }

    def _ask(self, poll: dict[str, Any], attempts: int = 1) -> Any:
        path = f"/pools/{escaped(self._pool)}/poll"
        return self._client.request("POST", path, body=poll, attempts=attempts, timeout=POLL_WAIT + 30.0, watch=self._watch)

    def _watch(self, connection: http.client.HTTPConnection | None) -> None:
        self._polling = connection

    def _take(self, answer: Any, repeated: bool, tasks: ThreadPoolExecutor) -> None:
        """Begins the tasks of an answer. If the poll was repeated, the leases may be old: they are renewed at once."""
        with self._lock:
            for task in self._running.values():
                if task.id in answer["cancelled"]:
                    task._next_beat = 0.0  # the heartbeat learns why
            for raw in answer["tasks"]:
                if raw["fencing_token"] in self._running:
                    continue
                task = Task(self, raw)
                if repeated:
                    task._next_beat = 0.0
                self._running[task.fencing_token] = task
                tasks.submit(self._run, task)

    def _run(self, task: Task) -> None:
        try:
            self._call(task)
        except Exception:
            log.exception("a task could not be ended")
        finally:
            with self._lock:
                self._running.pop(task.fencing_token, None)
            self._freed.set()

    def _call(self, task: Task) -> None:
        try:
            result = self._handlers[task.handler](task)
        except Permanent as e:
            self._end(task, "fail", {"error": told(e), "retryable": False, **kept(task, task.result)})
        except Retry as e:
            pause = max(e.after, 0.0) if math.isfinite(e.after) else 0.0
            self._end(task, "fail", {"error": told(e), "retry_after": f"{int(pause * 1000)}ms", **kept(task, task.result)})
        except BaseException as e:  # such as that of sys.exit, which ends neither this thread nor the process: only the task
            if isinstance(task._stopped, Lost):
                log.warning("the task %s was lost", task.id)
            elif isinstance(task._stopped, Drained):
                self._end(task, "release", {})
            else:
                if not isinstance(e, Stopped):
                    log.warning("the task %s failed", task.id, exc_info=True)
                self._end(task, "fail", {"error": told(e), **kept(task, task.result)})
        else:
            self._end(task, "complete", kept(task, task.result if result is None else result))

    def tell(self, task: Task, what: str, body: dict[str, Any], timeout: float = END_TRY) -> Any:
        """Tells of a task, once."""
        path = f"/pools/{escaped(self._pool)}/tasks/{task.id}/{what}"
        return self._client.request("POST", path, body={"fencing_token": task.fencing_token, **body}, attempts=1, timeout=timeout)

    def _end(self, task: Task, how: str, body: dict[str, Any]) -> None:
        """Tells how a task ended, until that is answered. Its heartbeats go on meanwhile."""
        deadline, tries = time.monotonic() + END_FOR, 0
        while True:
            try:
                self.tell(task, how, body)
                return
            except (Problem, Unreachable) as e:
                refused = isinstance(e, Problem) and 400 <= e.status < 500 and not e.passing
                invalid = isinstance(e, Problem) and e.status in (400, 413, 422)
                if invalid and "result" in body:  # such as one of too many values
                    log.warning("the result of the task %s is refused and is not kept: %s", task.id, e)
                    body = {k: v for k, v in body.items() if k != "result"}
                    continue
                if refused or time.monotonic() >= deadline:
                    log.warning("cannot tell how the task %s ended: %s", task.id, e)
                    return
            time.sleep(min(0.5 * 2 ** min(tries, 6), 30.0))
            tries += 1


def kept(task: Task, result: Any) -> dict[str, Any]:
    """The result of a task, as far as it can be kept: one that cannot costs no success."""
    if result is None:
        return {}
    try:
        text = json.dumps(result, allow_nan=False)
        if len(text) > MAX_RESULT:
            raise ValueError(f"it has {len(text)} bytes, more than {MAX_RESULT}")
    except (TypeError, ValueError, RecursionError) as e:
        log.warning("the result of the task %s cannot be kept: %s", task.id, e)
        return {}
    return {"result": result}


def told(e: BaseException) -> str:
    """What is told of an exception: text that JSON can carry, whatever is in its message."""
    try:
        text = str(e)
    except Exception:  # the handler's own class, which may do anything
        text = ""
    if not isinstance(e, Exception):
        text = f"the handler raised {type(e).__name__}: {text}"
    text = text or type(e).__name__
    return text.encode(errors="replace").decode()[:MAX_ERROR]


def instant(text: str) -> float:
    """An instant of the API as seconds since 1970."""
    return datetime.datetime.fromisoformat(text).timestamp()


def seconds(text: str) -> float:
    """The seconds of a duration such as 1h30m or 250ms."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|h|m|s)", text))
