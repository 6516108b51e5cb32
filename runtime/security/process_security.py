"""The security of one process: what its directory says now.

    files change -> read -> understood -> in force          every few seconds, without a restart
                         `-> not understood: the log says why, and what was in force stays

A certificate and its key are replaced one after the other. In between they do not belong together, and what was in
force stays until they do. Certificates, rules and the keys of tokens are taken each by themselves: who takes rights
away does not wait until a certificate is right. The password of ZooKeeper counts from the next start on: a session
shows it once, and what it has made is open to that user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, Never

from tallybook.core.access import Credentials, Presented, Principal
from tallybook.core.errors import InvalidConfig, Unauthenticated

from ..clock import Clock
from ..identity import Identity
from ..logging import logger
from ..metric_catalogue import Kind, MetricInfo
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
from .material import Material, identity_of, rules_of, token_keys_of, understand, zookeeper_of
from .standing import Standing, standing_of

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
"""What is understood, and in force, by itself; and in which files it is."""

_log = logger("security")


SECURITY_METRICS: Final = (
    MetricInfo(
        "expires_at",
        "tallybook_security_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "When the certificate in force expires, in seconds since the epoch.",
    ),
    MetricInfo(
        "reloads",
        "tallybook_security_reloads_total",
        Kind.COUNTER,
        "Times that changed security files came into force.",
    ),
    MetricInfo(
        "failures",
        "tallybook_security_reload_failures_total",
        Kind.COUNTER,
        "Looks at changed security files of which a part was not taken: the log says why.",
    ),
)


class Security:
    """What a directory says. Made by ``open_security``."""

    def __init__(self, directory: str, signature: Signature, material: Material) -> None:
        self._directory = directory
        self._signature = signature
        """Of the files that are in force."""
        self._told: dict[str, str] = {}
        """Why a part of what has changed is not taken, as was logged."""
        self._material = material
        self.reloads = 0
        """How often changed files came into force."""
        self.failures = 0
        """How often they did not."""

    @property
    def identity(self) -> Identity:
        """The certificates in force."""
        return self._material.identity

    def principal(self, presented: Presented) -> Principal:
        """Who has presented this; see the port."""
        material = self._material
        if material.rules is None:
            raise Unauthenticated("this process lets nobody in")
        if not presented.authorization:
            return material.rules.principal(Credentials(presented.certificate))
        if presented.certificate:
            raise Unauthenticated("a certificate or a token is wanted, not both")
        if material.token_keys is None:
            raise Unauthenticated("no tokens are taken here")
        token = material.token_keys.read(presented.authorization, material.rules.audience)
        return material.rules.principal(Credentials(subject=token.subject, until_us=token.until_us))

    @property
    def standing(self) -> Standing:
        """What this process itself may do, as far as its directory says."""
        return standing_of(self._material)

    def principals(self) -> list[str]:
        """Names of those who are let in."""
        rules = self._material.rules
        return [] if rules is None else rules.names

    def numbers(self) -> Mapping[str, float]:
        """Values of ``SECURITY_METRICS``."""
        expires_at = self.identity.expires_at.timestamp()
        return {"expires_at": expires_at, "reloads": self.reloads, "failures": self.failures}

    def days_left(self) -> float:
        """Until the certificate expires; below 0: since then."""
        return (self.identity.expires_at - datetime.now(UTC)).total_seconds() / _DAY_SECONDS

    def refresh(self) -> None:
        """Take over what has changed, if it can be understood. Reads files: not for an event loop."""
        try:
            if signature_of(self._directory) == self._signature:
                return
            files = read_files(self._directory)
        except InvalidConfig as error:
            self._say_not_taken("directory", error)
            return
        self._told.pop("directory", None)
        signature = list(self._signature)
        taken = []
        for part, names in _PARTS.items():
            now = part_of(files.signature, names)
            if now == part_of(self._signature, names):
                self._told.pop(part, None)
                continue
            try:
                self._take(part, files)
            except InvalidConfig as error:
                self._say_not_taken(part, error)
                continue
            self._told.pop(part, None)
            for name, look in zip(names, now, strict=True):
                signature[NAMES.index(name)] = look
            if part != _METADATA:
                taken.append(part)
        self._signature = tuple(signature)
        if taken:
            self.reloads += 1
            what = ", ".join(taken)
            _log.info("security files taken", what=what, path=self._directory, certificate=self.identity.names)

    def _take(self, part: str, files: Files) -> None:
        """Understand a part, and have it in force.

        Raises:
            InvalidConfig: it cannot be understood.
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

    def _say_not_taken(self, part: str, error: InvalidConfig) -> None:
        self.failures += 1
        if error.message != self._told.get(part):
            self._told[part] = error.message
            _log.error("changed security files are not taken", what=part, path=self._directory, error=error.message)

    async def keep_fresh(self, clock: Clock) -> Never:
        """Look at the files again and again, and say once a day that the certificate is about to expire."""
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


def open_security(directory: str, *, serves: bool) -> Security | None:
    """What ``directory`` says; ``None`` if it is empty: no security.

    Args:
        serves: others call this process, so there have to be rules of who may do what.

    Raises:
        InvalidConfig: the directory does not say it, or says what cannot be.
    """
    if not directory:
        return None
    files = read_files(directory)
    if serves:
        files.wanted(ACCESS, directory)
    return Security(directory, files.signature, understand(files, directory))


class ZooKeeperUsers(NamedTuple):
    """USER:PASSWORD of the users of ZooKeeper that a directory knows."""

    cluster: str | None
    """May do everything to what it makes."""
    reader: str | None
    """May only read that."""


def zookeeper_users(directory: str) -> ZooKeeperUsers:
    """The users of ZooKeeper that ``directory`` has passwords of.

    Raises:
        InvalidConfig: as for ``open_security``.
    """
    material = understand(read_files(directory), directory)
    return ZooKeeperUsers(material.zookeeper, material.zookeeper_reader)
