"""Credentials of an object store given by a caller instead of the environment.

They are never part of a message, a log or a ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Keys for S3. Empty region and endpoint: those of the environment."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class AzureCredentials:
    """A storage account with its key or a shared access signature."""

    account: str
    secret_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)


StoreCredentials: TypeAlias = S3Credentials | AzureCredentials
