"""A client of Minutehand's API, and a worker for its pools. It needs nothing but Python's standard library."""

from ._transport import Problem, Unreachable
from .client import Client
from .worker import Cancelled, Drained, Lost, Permanent, Retry, Stopped, Task, Worker

__all__ = ["Cancelled", "Client", "Drained", "Lost", "Permanent", "Problem", "Retry", "Stopped", "Task", "Unreachable", "Worker"]
