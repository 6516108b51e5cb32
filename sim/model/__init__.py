"""An exhaustive search of small worlds: every order of messages, losses and crashes, on the machines of production."""

from .search import Found, Report, explore
from .world import Limits, Model

__all__ = ["Found", "Limits", "Model", "Report", "explore"]
