"""The client of the API."""

from .api import Operations


class Client(Operations):
    """Makes requests; many threads may use it. Each operation of the API is a method (see Operations).

    A request whose answer was lost is repeated where that does no harm: those that create something carry an idempotency key.
    """
