"""Interrupts: exceptions that a signal's handler raised, wherever the program was.

Whoever turns the errors of some work into others lets these pass: they are not about the work.
"""

from __future__ import annotations

import signal
from types import CodeType


def is_interrupt(error: BaseException) -> bool:
    """Whether the handler of a signal raised an error, or what it called did."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """The code of a handler that is written in Python: a function, a method, or has `__call__`."""
    for found in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
