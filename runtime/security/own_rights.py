"""What a process may do by its own security directory, as far as that says it.

Rules in the directory decide, where there are any and one of them fits the certificate. Else a role, in a name
``tallybook://ROLE/NAME`` of the certificate, says what is not allowed at any rate; what is, a bookie knows.
"""

from __future__ import annotations

from typing import NamedTuple

from tallybook.core.access import Credentials, Permission, permissions_of_names
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied

from .files import read_files
from .material import Material, understand


class Standing(NamedTuple):
    """What a process is known to be allowed."""

    name: str
    """By which messages call it."""
    permissions: frozenset[Permission] | None
    """What it may do at most; ``None``: its directory does not say."""
    by_rules: bool = False
    """Whether rules say so, and not only the role in its certificate, which the rules of bookies may narrow."""

    def may_not(self, permission: Permission) -> bool:
        """Whether it is known that the process lacks this permission."""
        return self.permissions is not None and permission not in self.permissions

    def check(self, permission: Permission, command: str) -> None:
        """Raise AccessDenied if it is known that the process lacks the permission that ``command`` needs."""
        if self.may_not(permission):
            raise AccessDenied(f"'{command}' needs the permission to {permission.value}: {self.name} may not")


def own_standing(directory: str) -> Standing:
    """What the process with the security directory ``directory`` may do. Reads files.

    Raises:
        InvalidConfig: the directory cannot be used.
    """
    return standing_of(understand(read_files(directory), directory))


def standing_of(material: Material) -> Standing:
    """What a process with these files may do."""
    names = tuple(map(CertificateName.written, material.identity.names))
    shown = next((name.text for name in names if name.text.startswith("tallybook://")), names[0].text if names else "")
    if material.rules is not None and names:
        try:
            principal = material.rules.principal(Credentials(names))
        except AccessDenied:
            pass  # a server lets others in by its rules, and need not be among them
        else:
            return Standing(f"{principal.name} ({shown})", principal.permissions, by_rules=True)
    return Standing(shown, permissions_of_names(names))
