"""Options with credentials of an archive's object store, valid for one query only.

The option names match Spark's ``spark.redaction.regex``, so Spark hides their values.
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
    """The credentials in options with lower-case names.

    Raises:
        InvalidConfig: they are incomplete, or of two stores. The message contains option names, never values.
    """
    s3, azure = ({name: given[name] for name in names if given.get(name)} for names in (_S3, _AZURE))
    if s3 and azure:
        raise InvalidConfig(f"give credentials of one store only, not both {_named(s3)} and {_named(azure)}")
    if s3:
        if not ("s3accesskey" in s3 and "s3secretkey" in s3):
            # The keys of the process must never be sent to an endpoint that a query names.
            raise InvalidConfig(f"{_named(s3)} is not enough: give both s3AccessKey and s3SecretKey")
        return S3Credentials(*(s3.get(name, "") for name in _S3))
    if azure:
        if "azureaccount" not in azure or len(azure) != 2:
            raise InvalidConfig(f"with {_named(azure)}, give azureAccount and either azureSecretKey or azureSasToken")
        return AzureCredentials(*(azure.get(name, "") for name in _AZURE))
    return None


def _named(options: Mapping[str, str]) -> str:
    return ", ".join(PROPER_NAMES[name] for name in options)
