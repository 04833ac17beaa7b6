"""The client and the worker against a server, whose address is in MINUTEHAND_SERVER."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
import unittest
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minutehand import Client, Permanent, Problem, Retry, Stopped, Task, Worker
from minutehand.api import JobCreate

SERVER = os.environ["MINUTEHAND_SERVER"]
PATIENCE = 60.0  # seconds


class WithServer(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(SERVER)
        self.addCleanup(self.client.close)
        self.pool = "python-" + uuid.uuid4().hex[:12]

    def create(self, handler: str, body: Any = None, **more: Any) -> str:
        job: JobCreate = {
            "name": handler,
            "type": "one_shot",
            "delay": "100ms",
            "target": {"kind": "pool", "pool": self.pool, "handler": handler, "body": body, "heartbeat_timeout": "5s"},
            "retry_policy": {"backoff": "fixed", "base_delay": "1s", "jitter": 0, "max_attempts": 3},
        }
        job.update(more)  # type: ignore[typeddict-item]
        return self.client.create_job(job)["job_id"]

    def work(self, handlers: dict[str, Callable[[Task], Any]]) -> Worker:
        worker = Worker(self.client, self.pool, concurrency=4)
        for name, run in handlers.items():
            worker.handle(name)(run)
        thread = threading.Thread(target=worker.run, kwargs={"drain": 1.0})
        thread.start()

        def end() -> None:
            worker.stop()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), "the worker does not end")

        self.addCleanup(end)
        return worker

    def ended(self, job_id: str, state: str) -> Any:
        """Waits for the execution of a job to end, as it must."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for execution in self.client.list_executions(job_id)["items"]:
                if execution["state"] == state:
                    return execution
            time.sleep(0.1)
        self.fail(f"the execution is not {state}: {self.client.list_executions(job_id)}")


class TasksOfAPool(WithServer):
    def test_result_of_a_handler_is_kept_with_the_attempt(self) -> None:
        self.work({"add": lambda task: sum(task.payload)})
        execution = self.ended(self.create("add", [1, 2, 3]), "succeeded")
        self.assertEqual(self.client.get_execution(execution["execution_id"])["attempts"][0]["response_body"], "6")

    def test_next_attempt_goes_on_from_the_last_checkpoint(self) -> None:
        seen: list[tuple[int, int]] = []

        def count(task: Task) -> None:
            for n in range(task.progress or 0, 6):
                seen.append((task.attempt, n))
                if task.attempt == 1 and n == 3:
                    raise RuntimeError("lost its way")
                task.checkpoint(n + 1)

        self.work({"count": count})
        self.ended(self.create("count"), "succeeded")
        self.assertEqual(seen, [(1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5)])

    def test_permanent_failure_is_not_tried_again(self) -> None:
        def refuse(task: Task) -> None:
            raise Permanent("no such customer")

        self.work({"refuse": refuse})
        execution = self.ended(self.create("refuse"), "dead")
        attempts = self.client.get_execution(execution["execution_id"])["attempts"]
        self.assertEqual([a["response_body"] for a in attempts], ["no such customer"])

    def test_retry_waits_as_long_as_the_handler_asks(self) -> None:
        times: list[float] = []

        def later(task: Task) -> None:
            times.append(time.monotonic())
            if task.attempt == 1:
                raise Retry("busy", after=2.5)

        self.work({"later": later})
        self.ended(self.create("later"), "succeeded")
        self.assertGreaterEqual(times[1] - times[0], 2.5)

    def test_cancelled_task_is_told_so(self) -> None:
        begun, told = threading.Event(), threading.Event()
        executions: list[str] = []

        def hang(task: Task) -> None:
            executions.append(task.execution_id)
            begun.set()
            while True:
                try:
                    task.check()
                except Stopped:
                    told.set()
                    raise
                time.sleep(0.05)

        self.work({"hang": hang})
        job_id = self.create("hang")
        self.assertTrue(begun.wait(PATIENCE))
        self.client.cancel_execution(executions[0])
        self.assertTrue(told.wait(PATIENCE))
        self.ended(job_id, "cancelled")

    def test_long_task_is_kept_by_heartbeats(self) -> None:
        def sleep(task: Task) -> int:
            time.sleep(8)  # more than the heartbeat timeout
            task.check()
            return task.attempt

        self.work({"sleep": sleep})
        execution = self.ended(self.create("sleep"), "succeeded")
        self.assertEqual(len(self.client.get_execution(execution["execution_id"])["attempts"]), 1)

    def test_worker_that_ends_gives_its_tasks_back(self) -> None:
        begun = threading.Event()

        def hang(task: Task) -> None:
            begun.set()
            while True:
                task.check()
                time.sleep(0.05)

        first = self.work({"hang": hang})
        job_id = self.create("hang")
        self.assertTrue(begun.wait(PATIENCE))
        first.stop()
        attempts: list[int] = []
        self.work({"hang": lambda task: attempts.append(task.attempt)})
        self.ended(job_id, "succeeded")
        self.assertEqual(attempts, [1], "what is given back is the same attempt")

    def test_result_that_cannot_be_kept_costs_no_success_and_is_logged(self) -> None:
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        results: dict[str, Any] = {
            "set": {1, 2}, "many": list(range(30_000)), "large": "x" * 100_000, "nan": {"loss": math.nan}, "infinite": -math.inf,
            "nested": nested, "zeros": [0] * 21_000,  # the server alone refuses the last
        }

        def returns(result: Any) -> Callable[[Task], Any]:
            return lambda task: result

        with self.assertLogs("minutehand", "WARNING") as logged:
            self.work({name: returns(result) for name, result in results.items()})
            ids = {name: self.create(name) for name in results}
            tasks = [self.ended(job_id, "succeeded")["execution_id"] for job_id in ids.values()]
        for name, task in zip(ids, tasks, strict=True):
            self.assertEqual(len(self.client.get_execution(task)["attempts"]), 1, name)
            self.assertTrue(any(f"the result of the task {task}" in line for line in logged.output), f"{name} is not logged: {logged.output}")

    def test_failure_is_told_whatever_is_raised(self) -> None:
        def fails(error: BaseException) -> Callable[[Task], Any]:
            def run(task: Task) -> None:
                task.result = math.nan
                raise error

            return run

        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("it says nothing")

        def later(task: Task) -> None:
            raise Retry("busy", after="soon")  # type: ignore[arg-type]

        errors = {
            "exit": (fails(SystemExit(3)), "the handler raised SystemExit: 3"),
            "interrupt": (fails(KeyboardInterrupt()), "the handler raised KeyboardInterrupt: "),
            "surrogate": (fails(OSError("no file \udcff")), "no file ?"),
            "empty": (fails(ValueError()), "ValueError"),
            "mute": (fails(Mute()), "Mute"),
            "later": (later, "could not convert string to float: 'soon'"),
        }
        self.work({name: run for name, (run, _) in errors.items()})
        ids = {name: self.create(name, retry_policy={"max_attempts": 1}) for name in errors}
        for name, (_, text) in errors.items():
            execution = self.client.get_execution(self.ended(ids[name], "dead")["execution_id"])
            self.assertEqual([(a["outcome"], a["response_body"]) for a in execution["attempts"]], [("failed", text)], name)

    def test_worker_that_is_refused_ends_what_it_runs_before_it_fails(self) -> None:
        begun = threading.Event()
        client = Client(SERVER)
        self.addCleanup(client.close)
        worker = Worker(client, self.pool, concurrency=4)

        @worker.handle("slow")
        def slow(task: Task) -> None:
            begun.set()
            time.sleep(7)  # more than the heartbeat timeout
            task.check()

        failed: list[Exception] = []

        def run() -> None:
            try:
                worker.run(drain=20.0)
            except Problem as e:
                failed.append(e)

        thread = threading.Thread(target=run)
        thread.start()
        job_id = self.create("slow")
        self.assertTrue(begun.wait(PATIENCE))
        worker._name = "no name"  # which the server refuses
        self.create("slow")
        thread.join(PATIENCE)
        self.assertEqual([e.status for e in failed if isinstance(e, Problem)], [422])
        self.assertEqual(len(self.client.get_execution(self.ended(job_id, "succeeded")["execution_id"])["attempts"]), 1)


class Requests(WithServer):
    def test_refusal_says_what_is_wrong_and_where(self) -> None:
        with self.assertRaises(Problem) as caught:
            self.client.create_job({"name": "x", "type": "cron", "cron_expr": "* *", "target": {"kind": "http_webhook", "url": "http://127.0.0.1:9/"}})
        self.assertEqual(caught.exception.status, 422)
        self.assertIn("/cron_expr", str(caught.exception))

    def test_same_idempotency_key_makes_one_job(self) -> None:
        key = uuid.uuid4().hex
        job: JobCreate = {"name": "once", "type": "one_shot", "delay": "1h", "target": {"kind": "http_webhook", "url": "http://127.0.0.1:9/"}}
        first = self.client.create_job(job, idempotency_key=key)
        self.assertEqual(self.client.create_job(job, idempotency_key=key)["job_id"], first["job_id"])

    def test_iteration_goes_through_all_pages(self) -> None:
        label = "page/" + self.pool
        ids = [self.create("paged", labels={label: str(n)}, delay="1h") for n in range(5)]
        self.assertCountEqual([j["job_id"] for j in self.client.all_jobs(label=label, limit=2)], ids)


class QuickStart(WithServer):
    def test_quick_start_of_the_readme_runs_as_it_stands(self) -> None:
        text = (Path(__file__).parent.parent / "README.md").read_text()
        found = re.search(r"```python\n(.*?)```", text, re.S)
        assert found is not None
        program = found[1].replace("http://127.0.0.1:8080", SERVER)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.stdout, "".join(f"invoice for customer {n}\n" for n in range(3)), done.stderr)


if __name__ == "__main__":
    unittest.main()
