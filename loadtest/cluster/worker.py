"""A worker of the pool "work", by the Python client: it says on the standard output what it was handed, and which ends were accepted.

It is killed amid a task now and then, as others are: worker.py SERVER NAME.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "libs" / "python"))

from minutehand import Client, Task, Worker  # noqa: E402

# Held while an end is told, so that what was accepted is also said.
ending = threading.Lock()


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


class Teller(Worker):
    def tell(self, task: Task, what: str, body: dict[str, Any], timeout: float = 15.0) -> Any:
        if what != "complete":
            return super().tell(task, what, body, timeout)
        with ending:
            answer = super().tell(task, what, body, timeout)
            say("ended", task.execution_id, task.fencing_token)
        return answer


worker = Teller(Client(sys.argv[1]), "work", concurrency=4, name=sys.argv[2])


@worker.handle("do")
def do(task: Task) -> None:
    say("handed", task.execution_id, task.fencing_token, task.scheduled_for, task.progress or "-")
    abandon = random.randrange(20) == 0
    if abandon or random.randrange(4) == 0:
        task.checkpoint("half")
        say("told", "abandoned" if abandon else "half")
    if abandon:
        with ending:
            os._exit(1)


worker.run()
