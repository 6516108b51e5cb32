"""``tallybook security``: makes certificates, tokens and archive keys, for clusters without a certificate authority."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from tallybook.core.access import Role
from tallybook.core.errors import InvalidConfig

from ..options import Json, directory
from ..output import ResultFields, note, print_json, print_record

app = typer.Typer(help="Make certificates and tokens, and check a security directory.")

DAYS = 365
TOKEN_DAYS = 30
MAX_DAYS = 3_650

AuthorityDirectory = Annotated[
    Path, typer.Argument(parser=directory, metavar="AUTHORITY", help="Directory of the authority.")
]


@app.command()
def init(authority: AuthorityDirectory, as_json: Json = False) -> None:
    """Create an authority: a directory with the keys that sign certificates and tokens.

    Keep it away from servers: with it, anyone can act as any principal. AUTHORITY/access.toml has the access rules;
    edit it before 'security issue', which copies it to servers.
    """
    # Imported here because it takes long to load; below likewise.
    from tallybook.runtime.security.authority import Authority  # noqa: PLC0415

    try:
        made = Authority.create(authority)
    except OSError as error:
        raise InvalidConfig(f"{authority} cannot be created: {error.strerror}") from None
    print_record({"authority": str(authority), "token_key": made.token_keys()[-1]}, as_json=as_json)


@app.command()
def issue(
    authority: AuthorityDirectory,
    target: Annotated[
        Path,
        typer.Argument(
            parser=directory, metavar="DIR", help="Security directory to write; existing files are replaced."
        ),
    ],
    role: Annotated[
        Role, typer.Option(help="Role of the principal; 'bookie' also for gateways, offloaders and repairs.")
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the principal tallybook://ROLE/NAME.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Host name or IP address for connections to it; repeat for more."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="How long the certificate is valid.")] = DAYS,
    as_json: Json = False,
) -> None:
    """Write a security directory: a certificate, its key, and for bookies the access rules.

    A running process reloads replaced files within seconds, so this also renews certificates.
    """
    # As above.
    from tallybook.runtime.security.authority import Authority, Subject  # noqa: PLC0415

    if role is Role.BOOKIE and not hosts:
        note("without --host no client can connect to it")
    try:
        Authority.open(authority).issue(target, Subject(role, name, tuple(hosts or ())), days=days)
    except OSError as error:
        raise InvalidConfig(f"{error.filename or target} cannot be written: {error.strerror}") from None
    _show(target, as_json)


@app.command()
def token(
    authority: AuthorityDirectory,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Subject of the token, as in 'tokens' of a principal.")
    ],
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="How long the token is valid.")] = TOKEN_DAYS,
    as_json: Json = False,
) -> None:
    """Print a token for gateway clients without a certificate: 'authorization: Bearer TOKEN'."""
    # As above.
    from tallybook.runtime.security.authority import Authority  # noqa: PLC0415

    made = Authority.open(authority).token(subject, lifetime=timedelta(days=days))
    if as_json:
        print_json({"token": made})
    else:
        print(made)


@app.command("rotate-token-key")
def rotate_token_key(
    authority: AuthorityDirectory,
    drop: Annotated[str | None, typer.Option(metavar="KID", help="Remove this key instead.")] = None,
    as_json: Json = False,
) -> None:
    """Add a key that signs new tokens from now on; or remove an old key.

    First copy the new token-keys.json to every server ('security issue', or by hand), then issue new tokens. Drop the
    old key when the last of its tokens has expired: its tokens are not valid any more without it.
    """
    # As above.
    from tallybook.runtime.security.authority import Authority  # noqa: PLC0415

    held = Authority.open(authority)
    if drop is None:
        held.add_token_key()
    else:
        held.drop_token_key(drop)
    keys = held.token_keys()
    print_record({"signs": keys[-1], "counts": keys if as_json else ", ".join(keys)}, as_json=as_json)


@app.command("archive-key")
def archive_key(
    file: Annotated[
        Path, typer.Argument(parser=directory, metavar="FILE", help="The key file, as in setting archive_keys.")
    ],
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Remove this key instead.")] = None,
    plain: Annotated[
        str | None,
        typer.Option(metavar="read|refuse", help="Instead, set whether unencrypted archive objects may be read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add an archive encryption key, and create the file if it does not exist; or change the file. Keys are not shown.

    The new key is the current one at once. If several hosts have the file, copy the new file to all others before the
    offloader gets it. 'offload rekey' then rewraps existing objects, and after that the old key may be dropped. Objects
    that are encrypted with a deleted key are lost for ever.
    """
    # As above.
    from tallybook.runtime.security import archive_keys  # noqa: PLC0415

    if drop is not None and plain is not None:
        raise InvalidConfig("--drop and --plain cannot be used together: make one change after the other")
    if plain is not None and plain not in archive_keys.PLAIN:
        raise InvalidConfig(f"--plain {plain}: must be one of {', '.join(archive_keys.PLAIN)}")
    try:
        if drop is not None:
            held = archive_keys.drop_key(file, drop)
        elif plain is not None:
            held = archive_keys.set_plain_policy(file, reads_plain=plain == archive_keys.PLAIN[0])
        else:
            held = archive_keys.add_key(file)
    except OSError as error:
        raise InvalidConfig(f"{error.filename or file} cannot be written: {error.strerror}") from None
    names = sorted(held.keys)
    found: ResultFields = {
        "file": str(file),
        "current": held.current,
        "keys": names if as_json else ", ".join(names),
        "plain": archive_keys.PLAIN[0] if held.reads_plain else archive_keys.PLAIN[1],
    }
    print_record(found, as_json=as_json)


@app.command()
def check(
    target: Annotated[Path, typer.Argument(parser=directory, metavar="DIR", help="A security directory.")],
    as_json: Json = False,
) -> None:
    """Check whether a process can run with a security directory, and show its principals. Secrets are not shown."""
    _show(target, as_json)


def _show(target: Path, as_json: bool) -> None:
    # As above.
    from tallybook.runtime.security.process_security import open_security  # noqa: PLC0415

    security = open_security(str(target), serves=False)
    if security is None:
        raise InvalidConfig("give a security directory")
    names = security.identity.names
    found: ResultFields = {
        "directory": str(target),
        "names": list(names) if as_json else ", ".join(names),
        "expires_at": security.identity.expires_at.isoformat(),
        "days_left": round(security.days_left(), 1),
        "lets_in": security.principals() if as_json else ", ".join(security.principals()) or "none",
    }
    print_record(found, as_json=as_json)
