# SPDX-License-Identifier: Apache-2.0
"""What may go wrong. Each message says what was wrong, and what would be right."""


class PaceError(Exception):
    """Any error of this package that is not a wrong argument."""


class InvalidKey(PaceError, ValueError):
    """A text that is no key, or a key for the other end."""


class ConnectError(PaceError, ConnectionError):
    """There is no connection: another key, nobody who answers, or too many connections."""


class EndpointClosed(PaceError):
    """The endpoint was closed."""


class ConnectionClosed(PaceError, ConnectionError):
    """The connection was closed, at either end, and all that came before was taken."""


class ConnectionLost(ConnectionClosed):
    """The other end was not heard any more, or has broken the protocol."""


class DeadlineError(PaceError, ValueError):
    """The message expired before it was sent: its deadline is in the past."""


class MessageTooLong(PaceError, ValueError):
    """The message is longer than any message may be."""


class QueueFull(PaceError):
    """As many messages wait to be sent as are allowed."""
