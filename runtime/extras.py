"""Extras: the optional requirements of the package. An import that fails for lack of one says how to install it."""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import InvalidConfig

EXTRAS: Final = {
    "botocore": "s3",
    "cachetools": "archive",
    "cryptography": "security",
    "fastavro": "spark",
    "google.rpc": "server",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "jwt": "security",
    "kazoo": "zookeeper",
    "numpy": "archive",
    "obstore": "archive",
    "opentelemetry": "traces",
    "pandas": "spark",
    "prometheus_client": "cli",
    "pyarrow": "archive",
    "pyspark": "spark",
    "requests": "traces",
    "rich": "cli",
    "rocksdict": "server",
    "starlette": "server",
    "typer": "cli",
    "uvicorn": "server",
    "uvloop": "cli",
}
"""The extra of each module that the base requirements do not bring; test_packaging.py compares it with setup.cfg."""


def missing_extra(error: ModuleNotFoundError, user: str, extra: str = "") -> InvalidConfig | None:
    """The error that names the extra to install; ``None`` if the module that was not found belongs to none.

    Args:
        user: what needs the module, for the message.
        extra: the extra to name, if that of the module is a part of it.
    """
    name = error.name or ""
    library = next((known for known in EXTRAS if f"{name}.".startswith(f"{known}.")), None)
    if library is None:
        return None
    return InvalidConfig(f"{user} needs {library}: {how_to_install(extra or EXTRAS[library])}")


def how_to_install(extra: str) -> str:
    """How to install an extra: no package index has Tallybook, so it is installed from its source or a wheel."""
    return f"install Tallybook with the extra '{extra}' (pip install '.[{extra}]' in the source tree)"


class NeedsExtra:
    """Wraps the import of a library that an extra brings: if it is absent, InvalidConfig names the extra.

    Args:
        user: what needs the library, for the message.
        extra: as for `missing_extra`.
    """

    def __init__(self, user: str, extra: str = "") -> None:
        self._user = user
        self._extra = extra

    def __enter__(self) -> None:
        """Begin the import."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        """Raise InvalidConfig if a library of an extra was not found."""
        if isinstance(error, ModuleNotFoundError):
            named = missing_extra(error, self._user, self._extra)
            if named is not None:
                raise named from error
