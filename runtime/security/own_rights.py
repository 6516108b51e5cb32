"""The permissions of this process, as far as its own security directory says.

If the directory has rules and a principal in them matches the certificate, the rules decide. Otherwise the role in a
name ``tallybook://ROLE/NAME`` of the certificate gives an upper bound; the rules of the bookies decide.
"""

from __future__ import annotations

from typing import NamedTuple

from tallybook.core.access import Credentials, Permission, permissions_of_names
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied

from .files import read_files
from .material import Material, parse_material


class OwnPermissions(NamedTuple):
    """Permissions of this process, as far as they are known from its own directory."""

    name: str
    """The name of this process in messages."""
    permissions: frozenset[Permission] | None
    """Upper bound of its permissions; ``None``: not known."""
    by_rules: bool = False
    """Whether they come from rules; the role in a certificate alone may be narrowed by the rules of bookies."""

    def may_not(self, permission: Permission) -> bool:
        """Whether the process is known to lack this permission."""
        return self.permissions is not None and permission not in self.permissions

    def check(self, permission: Permission, command: str) -> None:
        """Raise AccessDenied if the process is known to lack the permission that ``command`` needs."""
        if self.may_not(permission):
            raise AccessDenied(f"'{command}' needs the permission to {permission.value}: {self.name} may not")


def own_permissions(directory: str) -> OwnPermissions:
    """The permissions of a process with the security directory ``directory``. Reads files.

    Raises:
        InvalidConfig: the directory cannot be used.
    """
    return permissions_of(parse_material(read_files(directory), directory))


def permissions_of(material: Material) -> OwnPermissions:
    """The permissions of a process with these files."""
    names = tuple(map(CertificateName.parse, material.identity.names))
    shown = next((name.text for name in names if name.text.startswith("tallybook://")), names[0].text if names else "")
    if material.rules is not None and names:
        try:
            principal = material.rules.principal(Credentials(names))
        except AccessDenied:
            pass  # the rules of a server are for its callers, and need not contain the server itself
        else:
            return OwnPermissions(f"{principal.name} ({shown})", principal.permissions, by_rules=True)
    return OwnPermissions(shown, permissions_of_names(names))
