"""Which right each command needs, and who is asked for it before the command does anything.

A command that changes the metadata writes the store itself, so with security on it first has to be allowed:

    own directory says no -> AccessDenied
    else a bookie is asked -> no -> AccessDenied
                           -> yes, and it is in that bookie's audit log
    no bookie can say      -> the own directory has to say yes; the lines of the audit log are written here

``bookie run`` asks no bookie, for there may be none yet. docs/security.md has the table of roles and commands;
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
    from tallybook.runtime.security import Standing


class Needs(NamedTuple):
    """What a command needs."""

    permission: Permission
    only_with: frozenset[str] = frozenset()
    """Options of which it needs one to do more than read."""
    not_with: str | None = None
    """Option with which it only reads."""
    administers_with: str | None = None
    """Option with which it needs the permission to administer."""


_READ: Final = Needs(Permission.READ)
_WRITE: Final = Needs(Permission.WRITE)
_KEEP: Final = Needs(Permission.KEEP)
_ADMINISTER: Final = Needs(Permission.ADMINISTER)
_POLICY: Final = frozenset({
    "--retention", "--offload-after", "--roll-bytes", "--roll-after", "--compression", "--dedup-records", "--ensemble",
    "--write-quorum", "--ack-quorum",
})  # fmt: skip

RIGHTS: Final[dict[str, Needs | None]] = {
    "up": None,
    "demo": None,
    "health": None,
    "trace": _READ,
    "fsck": Needs(Permission.ADMINISTER, only_with=frozenset({"--repair"})),
    "ledger create": _WRITE,
    "ledger append": _WRITE,
    "ledger read": _READ,
    "ledger tail": _READ,
    "ledger info": _READ,
    "ledger ls": _READ,
    "ledger rm": _WRITE,
    "ledger recover": Needs(Permission.WRITE, administers_with="--accept-loss"),
    "stream create": _WRITE,
    "stream policy": Needs(Permission.WRITE, only_with=_POLICY),
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
    "offload rekey": Needs(Permission.ADMINISTER, not_with="--dry-run"),
    "offload relocate": _ADMINISTER,
    "offload rebuild-catalog": Needs(Permission.ADMINISTER, only_with=frozenset({"--metadata"})),
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
}
"""What each command needs of the cluster; ``None``: it talks to none, or what it starts has rights of its own."""

_LINE_CHARACTERS: Final = 1_000
"""Of arguments in one line of the audit log; bookies take no more."""
_MAX_LINES: Final = 50


def needed() -> Needs | None:
    """The right that the command that this process runs needs as it was called; ``None``: none, or no command runs.

    A new command without a line in ``RIGHTS`` is a defect.
    """
    running = RUNNING.get()
    if running is None:
        return None
    check(running.command in RIGHTS, f"RIGHTS has no line for '{running.command}'")
    found = RIGHTS[running.command]
    if found is None:
        return None
    if found.not_with in running.options or (found.only_with and not found.only_with & running.options):
        return _READ
    return _ADMINISTER if found.administers_with in running.options else found


def check_own_right(security: str) -> Standing | None:
    """Refuse a command that this process may not run by its own security directory; what that says of it.

    Raises:
        AccessDenied: it may not.
        InvalidConfig: the directory is no good.
    """
    running, needs = RUNNING.get(), needed()
    if not security or needs is None or running is None:
        return None
    # What checks certificates takes long to load.
    from tallybook.runtime.security import own_standing  # noqa: PLC0415

    standing = own_standing(security)
    standing.check(needs.permission, running.command)
    return standing


async def check_right(world: ClientWorld, standing: Standing | None) -> None:
    """Ask a bookie for the right to the command that this process runs, if it changes anything.

    Raises:
        AccessDenied: it may not run it; or no bookie can say, and its own directory does not.
        InvalidArgument: it has too many arguments for the audit log.
    """
    running, needs = RUNNING.get(), needed()
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
                f"{standing.name or 'this certificate'} has it, and the security directory has no access.toml that does"
            )
        who = Principal(standing.name, standing.permissions).known_by(standing.name)
        for line in lines:
            audit("command", who, "no bookie", command=running.command, arguments=line)
    if world.guard is not None:
        world.guard.allow()


def audit_lines(running: Invocation) -> list[str]:
    """The arguments of a command for the audit log, all of them: in several lines where one has no room.

    Raises:
        InvalidArgument: they are too many.
    """
    text = shlex.join(running.arguments)
    if len(text) <= _LINE_CHARACTERS:
        return [text]
    room = _LINE_CHARACTERS - len(f"({_MAX_LINES} of {_MAX_LINES}) ")
    parts = [text[at : at + room] for at in range(0, len(text), room)]
    if len(parts) > _MAX_LINES:
        raise InvalidArgument(
            f"'{running.command}' has {len(text):,} characters of arguments, and the audit log has room for "
            f"{_MAX_LINES * room:,}: give it fewer at a time"
        )
    return [f"({number} of {len(parts)}) {part}" for number, part in enumerate(parts, start=1)]
