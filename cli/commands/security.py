"""``tallybook security``: certificates and tokens for those who have no authority of their own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from tallybook.core.access import Role
from tallybook.core.errors import InvalidConfig

from .options import Json, directory
from .output import Record, note, print_json, print_record

app = typer.Typer(help="Make certificates and tokens, and look at a security directory.")

DAYS = 365
TOKEN_DAYS = 30
MAX_DAYS = 3_650

AuthorityDirectory = Annotated[
    Path, typer.Argument(parser=directory, metavar="AUTHORITY", help="Directory of the authority.")
]


@app.command()
def init(authority: AuthorityDirectory, as_json: Json = False) -> None:
    """Make an authority: a directory from which certificates and tokens come.

    Keep it where no server is: whoever has it can be anybody. AUTHORITY/access.toml says who may do what; edit it
    before 'security issue', which gives it to servers.
    """
    # Certificates take long to load.
    from tallybook.runtime.security.authority import Authority  # noqa: PLC0415

    try:
        made = Authority.create(authority)
    except OSError as error:
        raise InvalidConfig(f"{authority} cannot be made: {error.strerror}") from None
    print_record({"authority": str(authority), "token_key": made.token_keys()[-1]}, as_json=as_json)


@app.command()
def issue(
    authority: AuthorityDirectory,
    target: Annotated[
        Path, typer.Argument(parser=directory, metavar="DIR", help="Where the files go; what is there is replaced.")
    ],
    role: Annotated[Role, typer.Option(help="What it is for; 'bookie' is for gateways, offloaders and repairs, too.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Whose it is: it is for tallybook://ROLE/NAME.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Name or IP address at which others reach it; again for more."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="How long the certificate is valid.")] = DAYS,
    as_json: Json = False,
) -> None:
    """Fill a security directory: a certificate, its key, and for bookies the rules of access.

    A process that runs with DIR takes over what is replaced within seconds, so this renews certificates, too.
    """
    # As above.
    from tallybook.runtime.security.authority import Authority, Subject  # noqa: PLC0415

    if role is Role.BOOKIE and not hosts:
        note("without --host nobody can connect to it")
    try:
        Authority.open(authority).issue(target, Subject(role, name, tuple(hosts or ())), days=days)
    except OSError as error:
        raise InvalidConfig(f"{error.filename or target} cannot be written: {error.strerror}") from None
    _show(target, as_json)


@app.command()
def token(
    authority: AuthorityDirectory,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Whose it is: 'tokens' of a principal.")],
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="How long it counts.")] = TOKEN_DAYS,
    as_json: Json = False,
) -> None:
    """Print a token, for clients of gateways that have no certificate: 'authorization: Bearer TOKEN'."""
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
    drop: Annotated[str | None, typer.Option(metavar="KID", help="Take this key away instead.")] = None,
    as_json: Json = False,
) -> None:
    """Make a new key that signs tokens from now on, beside those before; or take one away.

    First give the new token-keys.json to every server ('security issue', or copy it), then hand out new tokens, and
    drop the old key when the last of its tokens has expired: its tokens count no more where it is gone.
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
    file: Annotated[Path, typer.Argument(parser=directory, metavar="FILE", help="The file that archive_keys names.")],
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Take this key away instead.")] = None,
    plain: Annotated[
        str | None,
        typer.Option(
            metavar="read|refuse", help="Say instead whether objects of the archive that are not sealed are believed."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key for sealing the archive, and the file if there is none; or change the file. Keys are not shown.

    The new key is the current one at once. Where several hosts have the file, give all of them the new one before an
    offloader has it; 'offload rekey' then gives it to what is there, and after that the old key may go: what is
    sealed with a key that is gone is lost for ever.
    """
    # As above.
    from tallybook.runtime.security import archive_keys  # noqa: PLC0415

    if drop is not None and plain is not None:
        raise InvalidConfig("--drop and --plain are two changes: make one after the other")
    if plain is not None and plain not in archive_keys.PLAIN:
        raise InvalidConfig(f"--plain {plain}: one of {', '.join(archive_keys.PLAIN)} is wanted")
    try:
        if drop is not None:
            held = archive_keys.drop_key(file, drop)
        elif plain is not None:
            held = archive_keys.believe_plain(file, reads_plain=plain == archive_keys.PLAIN[0])
        else:
            held = archive_keys.add_key(file)
    except OSError as error:
        raise InvalidConfig(f"{error.filename or file} cannot be written: {error.strerror}") from None
    names = sorted(held.keys)
    found: Record = {
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
    """See whether a process could run with a security directory, and show who it would be. Secrets are not shown."""
    _show(target, as_json)


def _show(target: Path, as_json: bool) -> None:
    # As above.
    from tallybook.runtime.security import open_security  # noqa: PLC0415

    security = open_security(str(target), serves=False)
    if security is None:
        raise InvalidConfig("a directory is wanted")
    names = security.identity.names
    found: Record = {
        "directory": str(target),
        "names": list(names) if as_json else ", ".join(names),
        "expires_at": security.identity.expires_at.isoformat(),
        "days_left": round(security.days_left(), 1),
        "lets_in": security.principals() if as_json else ", ".join(security.principals()) or "nobody",
    }
    print_record(found, as_json=as_json)
