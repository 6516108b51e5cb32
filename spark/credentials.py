"""Options with the credentials of an archive's object store, which hold for one query instead of a process.

Spark hides the values of options whose names look like secrets (``spark.redaction.regex``): names here do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallybook.archive.objects.credentials import AzureCredentials, S3Credentials, StoreCredentials
from tallybook.core.errors import InvalidConfig

from .option_names import PROPER_NAMES

_S3: Final = ("s3accesskey", "s3secretkey", "s3sessiontoken", "s3region", "s3endpoint")
_AZURE: Final = ("azureaccount", "azuresecretkey", "azuresastoken")


def credentials_of(given: Mapping[str, str]) -> StoreCredentials | None:
    """The credentials among options, by their names in lower case.

    Raises:
        InvalidConfig: they are not complete, or of two kinds. The message names options, never values.
    """
    s3, azure = ({name: given[name] for name in names if given.get(name)} for names in (_S3, _AZURE))
    if s3 and azure:
        raise InvalidConfig(f"give credentials of one store: there are {_named(s3)} and {_named(azure)}")
    if s3:
        if not ("s3accesskey" in s3 and "s3secretkey" in s3):
            # An endpoint of a query must never get the keys of the process.
            raise InvalidConfig(f"there is {_named(s3)}: give s3AccessKey and s3SecretKey, which go together")
        return S3Credentials(*(s3.get(name, "") for name in _S3))
    if azure:
        if "azureaccount" not in azure or len(azure) != 2:
            raise InvalidConfig(
                f"there is {_named(azure)}: give azureAccount and either azureSecretKey or azureSasToken"
            )
        return AzureCredentials(*(azure.get(name, "") for name in _AZURE))
    return None


def _named(options: Mapping[str, str]) -> str:
    return ", ".join(PROPER_NAMES[name] for name in options)
