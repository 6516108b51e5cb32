"""The security of one process: certificates, access rules and token keys, reloaded while the process runs.

    files change -> read -> valid -> in force          every few seconds, without a restart
                         `-> invalid: logged, and the earlier version stays in force

A certificate and its key are replaced one after the other; while they do not match, the earlier pair stays in force.
Certificates, rules and token keys are reloaded independently, so that revoked rights do not wait for a valid
certificate. A new ZooKeeper password is used from the next start: a session authenticates once, and the nodes that it
has created belong to that user.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, Never

from tallybook.core.access import Credentials, Presented, Principal
from tallybook.core.errors import InvalidConfig, Unauthenticated

from ..clock import Clock
from ..logging import logger
from ..metrics.part_metrics import PartMetrics
from ..tasks import ThreadWorkers
from .files import (
    ACCESS,
    AUTHORITY,
    CERTIFICATE,
    NAMES,
    PRIVATE,
    TOKEN_KEYS,
    ZOOKEEPER,
    ZOOKEEPER_READER,
    Files,
    Signature,
    part_of,
    read_files,
    signature_of,
)
from .identity import Identity
from .material import Material, identity_of, parse_material, rules_of, token_keys_of, zookeeper_of
from .own_rights import OwnPermissions, permissions_of

RELOAD_SECONDS: Final = 2.0
EXPIRY_WARNING_DAYS: Final = 14
_DAY_SECONDS: Final = 86_400.0

_CERTIFICATES: Final = "certificates"
_RULES: Final = "rules"
_TOKEN_KEYS: Final = "token keys"  # noqa: S105 (a part)
_METADATA: Final = "zookeeper"
_PARTS: Final = {
    _CERTIFICATES: (AUTHORITY, CERTIFICATE, PRIVATE),
    _RULES: (ACCESS,),
    _TOKEN_KEYS: (TOKEN_KEYS,),
    _METADATA: (ZOOKEEPER, ZOOKEEPER_READER),
}
"""The parts that are reloaded independently, and their files."""

_log = logger("security")


class Security:
    """The security of this process from its directory. Made by ``open_security``."""

    def __init__(self, directory: str, signature: Signature, material: Material) -> None:
        self._directory = directory
        self._signature = signature
        """Signature of the files in force."""
        self._logged: dict[str, str] = {}
        """The logged reason for each part whose change is invalid."""
        self._material = material
        self.reloads = 0
        """How often changed files came into force."""
        self.failures = 0
        """How often changed files were invalid."""

    @property
    def identity(self) -> Identity:
        """The certificates in force."""
        return self._material.identity

    def principal(self, presented: Presented) -> Principal:
        """Authenticate a caller; see the port."""
        material = self._material
        if material.rules is None:
            raise Unauthenticated("this process has no access rules: it serves no callers")
        if not presented.authorization:
            return material.rules.principal(Credentials(presented.certificate))
        if presented.certificate:
            raise Unauthenticated("present either a certificate or a token, not both")
        if material.token_keys is None:
            raise Unauthenticated("this server accepts no tokens, as it has no token-keys.json: present a certificate")
        token = material.token_keys.read(presented.authorization, material.rules.audience)
        return material.rules.principal(Credentials(subject=token.subject, until_us=token.until_us))

    @property
    def standing(self) -> OwnPermissions:
        """The permissions of this process itself, as far as its directory says."""
        return permissions_of(self._material)

    def principals(self) -> list[str]:
        """Names of the principals in the rules."""
        rules = self._material.rules
        return [] if rules is None else rules.names

    def days_left(self) -> float:
        """Days until the certificate expires; negative after that."""
        return (self.identity.expires_at - datetime.now(UTC)).total_seconds() / _DAY_SECONDS

    def refresh(self) -> None:
        """Load the changed parts that are valid. Reads files: do not call it on an event loop."""
        try:
            if signature_of(self._directory) == self._signature:
                return
            files = read_files(self._directory)
        except InvalidConfig as error:
            self._log_invalid("directory", error)
            return
        self._logged.pop("directory", None)
        signature = list(self._signature)
        taken = []
        for part, names in _PARTS.items():
            now = part_of(files.signature, names)
            if now == part_of(self._signature, names):
                self._logged.pop(part, None)
                continue
            try:
                self._load(part, files)
            except InvalidConfig as error:
                self._log_invalid(part, error)
                continue
            self._logged.pop(part, None)
            for name, changed in zip(names, now, strict=True):
                signature[NAMES.index(name)] = changed
            if part != _METADATA:
                taken.append(part)
        self._signature = tuple(signature)
        if taken:
            self.reloads += 1
            what = ", ".join(taken)
            _log.info("security files taken", what=what, path=self._directory, certificate=self.identity.names)

    def _load(self, part: str, files: Files) -> None:
        """Load one part and put it in force.

        Raises:
            InvalidConfig: it is invalid.
        """
        before, where = self._material, self._directory
        if part == _CERTIFICATES:
            self._material = replace(before, identity=identity_of(files, where))
        elif part == _RULES:
            rules = rules_of(files, where)
            if rules is None and before.rules is not None:
                raise InvalidConfig(f"{where} has no {ACCESS} any more")
            self._material = replace(before, rules=rules)
        elif part == _TOKEN_KEYS:
            self._material = replace(before, token_keys=token_keys_of(files, where))
        else:
            for name in _PARTS[_METADATA]:
                zookeeper_of(files, where, name)
            _log.info("the password of zookeeper counts from the next start on", path=where)

    def _log_invalid(self, part: str, error: InvalidConfig) -> None:
        self.failures += 1
        if error.message != self._logged.get(part):
            self._logged[part] = error.message
            _log.error("changed security files are not taken", what=part, path=self._directory, error=error.message)

    async def reload_periodically(self, clock: Clock) -> Never:
        """Reload changed files every ``RELOAD_SECONDS``; warn once a day of a certificate that expires soon."""
        reader, warned_at = ThreadWorkers(1, "tallybook-security"), -_DAY_SECONDS
        try:
            while True:
                await reader.run(self.refresh)
                days = self.days_left()
                if days < EXPIRY_WARNING_DAYS and clock.monotonic() - warned_at >= _DAY_SECONDS:
                    warned_at = clock.monotonic()
                    say = _log.error if days <= 0 else _log.warning
                    say("the certificate expires", certificate=self.identity.names, days_left=round(days, 1))
                await clock.sleep(RELOAD_SECONDS)
        finally:
            await reader.close()


SECURITY_METRICS: Final = (
    PartMetrics[Security]()
    .gauge(
        "expires_at",
        "tallybook_security_certificate_expiry_timestamp_seconds",
        "When the certificate in force expires, in seconds since the epoch.",
        lambda security: security.identity.expires_at.timestamp(),
    )
    .counter(
        "reloads",
        "tallybook_security_reloads_total",
        "Times that changed security files came into force.",
        lambda security: security.reloads,
    )
    .counter(
        "failures",
        "tallybook_security_reload_failures_total",
        "Reloads of changed security files in which a part was invalid and was not applied; the log says why.",
        lambda security: security.failures,
    )
)


def open_security(directory: str, *, serves: bool) -> Security | None:
    """Load the security directory; ``None`` if ``directory`` is an empty string: no security.

    Args:
        serves: this process serves callers, so access rules are required.

    Raises:
        InvalidConfig: a required file is missing or invalid.
    """
    if not directory:
        return None
    files = read_files(directory)
    if serves:
        files.required(ACCESS, directory)
    return Security(directory, files.signature, parse_material(files, directory))


class ZooKeeperUsers(NamedTuple):
    """USER:PASSWORD of the ZooKeeper users of a directory; ``None`` for a missing one."""

    cluster: str | None
    """The user with all rights on the nodes that it creates."""
    reader: str | None
    """The user with read access to these nodes."""


def zookeeper_users(directory: str) -> ZooKeeperUsers:
    """The ZooKeeper users in ``directory``.

    Raises:
        InvalidConfig: as for ``open_security``.
    """
    material = parse_material(read_files(directory), directory)
    return ZooKeeperUsers(material.zookeeper, material.zookeeper_reader)
