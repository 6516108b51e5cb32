"""Exhaustive search of small worlds: every order of requests, losses and crashes, with the production state machines.

Three simplifications: a metadata update is one step, so its outcome is always known; in worlds of more than one batch
an answer arrives at once or never (``ModelLimits.late_acks`` tells why this hides no writer bug); and there is no time,
so a timeout occurs as soon as a message is lost.
"""

from .search import BrokenWorld, SearchReport, explore
from .world import Model, ModelLimits

__all__ = ["BrokenWorld", "Model", "ModelLimits", "SearchReport", "explore"]
