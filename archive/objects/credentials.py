"""Credentials of an object store that a caller gives, in place of those of the process's environment.

They are never part of a message, a log or a ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Keys for S3. Region and endpoint are those of the environment where they are empty."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class AzureCredentials:
    """A storage account, and its key or a shared access signature: one of both."""

    account: str
    secret_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)


StoreCredentials: TypeAlias = S3Credentials | AzureCredentials
