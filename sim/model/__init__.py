"""An exhaustive search of small worlds: every order of requests, losses and crashes, on the machines of production.

Three things are simpler than life. A metadata update is one step, so its outcome is always known. In worlds of more
than one batch an answer is heard when it is given, or never; ``Limits.late_acks`` says why that hides nothing from a
writer. And who waits too long is told so as soon as a message is lost, since there is no time.
"""

from .search import Found, Report, explore
from .world import Limits, Model

__all__ = ["Found", "Limits", "Model", "Report", "explore"]
