"""Settings: one frozen pydantic model per kind of process, validated when it is built.

One module per process kind (``bookie``, ``client``, ``gateway``, ``offload``, ``repair``, ``console``); ``types`` has
the kinds of values (sizes, durations, addresses) and ``base`` the shared base class. The models live in ``core``
because every part reads them. ``runtime/settings`` loads the values: defaults, then file, environment, flags. Nothing
here may read a file or the environment. docs/reference/configuration.md is generated from the field descriptions.
"""

from .base import Settings
from .bookie import (
    AdmissionSettings,
    BackgroundSettings,
    BookieSettings,
    CollectionSettings,
    JournalSettings,
    ScrubSettings,
    StorageSettings,
)
from .client import ClientSettings
from .console import ConsoleSettings
from .gateway import GatewayClientSettings, GatewaySettings
from .offload import OffloadSettings
from .repair import RepairSettings

__all__ = [
    "AdmissionSettings",
    "BackgroundSettings",
    "BookieSettings",
    "ClientSettings",
    "CollectionSettings",
    "ConsoleSettings",
    "GatewayClientSettings",
    "GatewaySettings",
    "JournalSettings",
    "OffloadSettings",
    "RepairSettings",
    "ScrubSettings",
    "Settings",
    "StorageSettings",
]
