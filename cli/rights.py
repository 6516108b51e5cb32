"""The permission that each command needs, and its check before the command does anything.

A command that changes the metadata writes to the store itself, so with security on it has to be authorized first:

    own security directory says no -> AccessDenied
    else ask a bookie: no          -> AccessDenied
                       yes         -> the bookie has written it to its audit log
    no bookie can answer           -> the own directory has to say yes; the audit log is written here

``bookie run`` asks no bookie, for there may be none yet. docs/operate/access.md has the table of roles and commands;
tests/integration/test_roles.py runs it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from tallybook.core.access import Permission, Principal
from tallybook.core.errors import AccessDenied, InvalidArgument, check
from tallybook.runtime.audit import audit

from .invocation import RUNNING, Invocation

if TYPE_CHECKING:
    from tallybook.client.ports import ClientWorld
    from tallybook.runtime.security.own_rights import OwnPermissions


class RequiredPermission(NamedTuple):
    """The permission that a command needs."""

    permission: Permission
    only_with: frozenset[str] = frozenset()
    """If not empty: the command only reads, unless one of these options is given."""
    not_with: str | None = None
    """An option with which the command only reads."""
    administers_with: str | None = None
    """An option with which the command needs the permission to administer."""


_READ: Final = RequiredPermission(Permission.READ)
_WRITE: Final = RequiredPermission(Permission.WRITE)
_KEEP: Final = RequiredPermission(Permission.KEEP)
_ADMINISTER: Final = RequiredPermission(Permission.ADMINISTER)
_POLICY: Final = frozenset({
    "--retention", "--retention-bytes", "--max-bytes", "--offload-after", "--roll-bytes", "--roll-after",
    "--compression", "--dedup-records", "--ensemble", "--write-quorum", "--ack-quorum",
})  # fmt: skip

REQUIRED_PERMISSIONS: Final[dict[str, RequiredPermission | None]] = {
    "up": None,
    "demo": None,
    "health": None,
    "trace": _READ,
    "fsck": RequiredPermission(Permission.ADMINISTER, only_with=frozenset({"--repair"})),
    "ledger create": _WRITE,
    "ledger append": _WRITE,
    "ledger read": _READ,
    "ledger tail": _READ,
    "ledger info": _READ,
    "ledger ls": _READ,
    "ledger rm": _WRITE,
    "ledger recover": RequiredPermission(Permission.WRITE, administers_with="--accept-loss"),
    "stream create": _WRITE,
    "stream policy": RequiredPermission(Permission.WRITE, only_with=_POLICY),
    "stream rename": _WRITE,
    "stream ls": _READ,
    "stream info": _READ,
    "stream rm": _WRITE,
    "stream append": _WRITE,
    "stream read": _READ,
    "stream tail": _READ,
    "stream truncate": _WRITE,
    "stream seal": _WRITE,
    "stream mend": _WRITE,
    "stream keep": _WRITE,
    "namespace create": _WRITE,
    "namespace info": _READ,
    "namespace ls": _READ,
    "namespace rm": _WRITE,
    "subscription create": _WRITE,
    "subscription ls": _READ,
    "subscription reset": _WRITE,
    "subscription rm": _WRITE,
    "bookie run": _KEEP,
    "bookie init": _KEEP,
    "bookie rebuild-index": _READ,
    "bookie ls": _READ,
    "bookie info": _READ,
    "bookie drain": _ADMINISTER,
    "bookie readonly": _ADMINISTER,
    "cluster diagnose": _READ,
    "cluster status": _READ,
    "cluster check": _READ,
    "cluster audit": _ADMINISTER,
    "cluster require-security": _ADMINISTER,
    "offload run": _KEEP,
    "offload status": _READ,
    "offload verify": _READ,
    "offload rekey": RequiredPermission(Permission.ADMINISTER, not_with="--dry-run"),
    "offload relocate": _ADMINISTER,
    "offload rebuild-catalog": RequiredPermission(Permission.ADMINISTER, only_with=frozenset({"--metadata"})),
    "repair run": _KEEP,
    "gateway run": _READ,
    "console run": _READ,
    "security init": None,
    "security issue": None,
    "security token": None,
    "security rotate-token-key": None,
    "security archive-key": None,
    "security check": None,
    "journal dump": None,
    "journal verify": None,
    "entrylog dump": None,
    "entrylog verify": None,
    "bench write": _WRITE,
    "bench read": _WRITE,
    "bench journal": None,
    "completion": None,
}
"""``None``: the command talks to no cluster, or the servers that it starts check their own permissions."""

_LINE_CHARACTERS: Final = 1_000
"""Characters of arguments in one line of the audit log; bookies accept no more."""
_MAX_LINES: Final = 50


def required_permission() -> RequiredPermission | None:
    """The permission that the running command needs with its options; ``None``: none, or no command runs.

    A command without a line in ``REQUIRED_PERMISSIONS`` is a defect.
    """
    running = RUNNING.get()
    if running is None:
        return None
    check(running.command in REQUIRED_PERMISSIONS, f"REQUIRED_PERMISSIONS has no line for '{running.command}'")
    found = REQUIRED_PERMISSIONS[running.command]
    if found is None:
        return None
    if found.not_with in running.options or (found.only_with and not found.only_with & running.options):
        return _READ
    return _ADMINISTER if found.administers_with in running.options else found


def check_own_permission(security: str) -> OwnPermissions | None:
    """Check the running command against the process's own security directory; returns the permissions found there.

    Raises:
        AccessDenied: the command is not permitted.
        InvalidConfig: the directory is invalid.
    """
    running, needs = RUNNING.get(), required_permission()
    if not security or needs is None or running is None:
        return None
    # What checks certificates takes long to load.
    from tallybook.runtime.security.own_rights import own_permissions  # noqa: PLC0415

    standing = own_permissions(security)
    standing.check(needs.permission, running.command)
    return standing


async def check_permission(world: ClientWorld, standing: OwnPermissions | None) -> None:
    """Ask a bookie to authorize the running command, unless it only reads.

    Raises:
        AccessDenied: it is not permitted; or no bookie can answer, and the own directory does not permit it.
        InvalidArgument: it has too many arguments for the audit log.
    """
    running, needs = RUNNING.get(), required_permission()
    if standing is None or running is None or needs is None or needs.permission is Permission.READ:
        return
    # Most commands ask for nothing; a client is loaded by now.
    from tallybook.client.authorization import authorize  # noqa: PLC0415

    lines = audit_lines(running)
    said = await authorize(world, needs.permission, running.command, lines)
    if said.by is None:
        if standing.permissions is None:
            raise AccessDenied(
                f"'{running.command}' needs the permission to {needs.permission.value}; no bookie can say whether "
                f"{standing.name or 'this certificate'} has it, and the security directory has no access.toml"
            )
        who = Principal(standing.name, standing.permissions).with_identity(standing.name)
        for line in lines:
            audit("command", who, "no bookie", command=running.command, arguments=line)
    if world.guard is not None:
        world.guard.allow()


def audit_lines(running: Invocation) -> list[str]:
    """The arguments of a command for the audit log, split into several lines if they are long.

    Raises:
        InvalidArgument: they are too long.
    """
    text = shlex.join(running.arguments)
    if len(text) <= _LINE_CHARACTERS:
        return [text]
    space = _LINE_CHARACTERS - len(f"({_MAX_LINES} of {_MAX_LINES}) ")
    parts = [text[at : at + space] for at in range(0, len(text), space)]
    if len(parts) > _MAX_LINES:
        raise InvalidArgument(
            f"'{running.command}' has {len(text):,} characters of arguments, and the audit log takes "
            f"{_MAX_LINES * space:,}: give it fewer at a time"
        )
    return [f"({number} of {len(parts)}) {part}" for number, part in enumerate(parts, start=1)]
