"""Settings of a console."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .base import Settings
from .client import ClientSettings
from .types import AddressList, Hosts, SecurityDirectory, address


class ConsoleSettings(Settings):
    """Settings of a console: where it serves operators, and which cluster it shows."""

    security: SecurityDirectory = ""
    listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:7480",
        description="Host and port of page and endpoints; port 0 is any free one. Without security, loopback only.",
    )
    hosts: Hosts = Field(
        default=(),
        max_length=64,
        description="Host names that browsers use for it, besides addresses, `localhost`, the name of its machine and "
        "those of its certificate; comma-separated in the environment.",
    )
    processes: AddressList = Field(
        default=(),
        max_length=1_000,
        description="Addresses (HOST:PORT of health and metrics) of gateways, offloaders and repairs, for the "
        "diagnosis; bookies are found in the metadata. Comma-separated in the environment.",
    )
    metadata: str = Field(default=..., description="URI of the metadata store.", min_length=1)
    client: ClientSettings = Field(default_factory=ClientSettings)
