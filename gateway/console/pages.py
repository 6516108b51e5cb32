"""The page: files beside this module, read once. They are the same for everybody and say nothing of a cluster."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from tallybook.runtime.http_api import Page

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FRONT: Final = "index.html"


def pages() -> dict[str, Page]:
    """All files, by the paths that they are served at. The front page has the path of a folder, too."""
    found: dict[str, Page] = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            found[f"/static/{file.name}"] = Page(media_type, file.read_bytes())
    if f"/static/{FRONT}" in found:
        found["/"] = found[f"/static/{FRONT}"]
    return found
