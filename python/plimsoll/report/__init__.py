"""One HTML page about training runs: see :func:`plimsoll.report`."""

from plimsoll.report.page import report

__all__ = ["report"]
