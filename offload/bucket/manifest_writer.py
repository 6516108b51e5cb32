"""Keeps the manifest of the bucket up to date: replaces it when its content changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

from tallybook.archive.manifest import MANIFEST_KEY, Manifest, encode_manifest, read_manifest
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object
from tallybook.core.coverage import sometimes
from tallybook.core.errors import ArchiveKeyMissing, ArchiveUnavailable, DamagedFile, NewerFormat, TallybookError
from tallybook.runtime.tasks import Workers


class ManifestWriter:
    """The manifest of one bucket, as known to this process.

    Args:
        workers: encode and decode it.
    """

    def __init__(self, store: ObjectStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._listed: ObjectInfo | None = None
        self.cluster_id: str | None = None
        """Id of the cluster that it names as owner; ``None``: unknown."""
        self.ledgers: Mapping[int, str] = {}
        """The ledgers that it counts, with their objects; empty: unknown."""
        self.objects: Mapping[str, Collection[int]] = {}
        """The objects that it names, with the ledgers that count in each; empty: unknown."""
        self.dropped: frozenset[str] = frozenset()
        """The named objects in which no ledger counts."""
        self.unreadable = ""
        """Why the last manifest loaded was unreadable; empty: it was readable."""
        self.remedy = ""
        """The way to make an intact manifest readable, which must not be replaced then; else empty."""
        self._content = b""
        """SHA-256 of its content; empty: unknown."""

    async def load(self, listed: ObjectInfo | None) -> Manifest | None:
        """Read the manifest if it may have changed; ``None`` if it has not, or does not exist.

        Args:
            listed: its listing entry.

        Raises:
            ArchiveUnavailable: the store does not answer.
            ArchiveDenied: the store refuses this object, and others.
        """
        if listed is not None and listed == self._listed:
            return None
        # If the read fails, it is read again in the next pass, changed or not.
        self._listed, self._content, self.cluster_id = None, b"", None
        self.unreadable, self.remedy = "", ""
        if listed is None:
            return None
        try:
            manifest = await read_manifest(self._store, self._workers)
        except (DamagedFile, *OBJECT_ERRORS) as error:
            # A time-out says nothing about the manifest, and an overloaded store nothing about this object.
            if isinstance(error, ArchiveUnavailable) or not await concerns_one_object(self._store, error):
                raise
            sometimes("offload: the manifest cannot be read")
            self.unreadable, self.remedy = error.message, _remedy(error)
            return None
        if manifest is not None:
            self._says(manifest)
            self._content = sha256(await self._workers.run(encode_manifest, manifest)).digest()
            self._listed = listed
        return manifest

    async def write(self, manifest: Manifest) -> bool:
        """Replace the manifest, unless it is unchanged; whether it was replaced.

        Raises:
            ArchiveUnavailable, ArchiveDenied: it may not have been replaced.
        """
        data = await self._workers.run(encode_manifest, manifest)
        content = sha256(data).digest()
        if content == self._content:
            return False
        self._content = b""
        await self._store.put(MANIFEST_KEY, data)
        # Its future listing entry is unknown: another process may replace it meanwhile. So it is read once more then.
        self._listed, self._content = None, content
        self._says(manifest)
        return True

    def _says(self, manifest: Manifest) -> None:
        self.cluster_id, self.ledgers = manifest.cluster_id, manifest.ledgers
        self.dropped = frozenset(manifest.dropped)
        objects: dict[str, list[int]] = {key: [] for key in manifest.objects}
        for ledger_id, key in manifest.ledgers.items():
            objects[key].append(ledger_id)
        self.objects = objects


def _remedy(error: TallybookError) -> str:
    if isinstance(error, ArchiveKeyMissing):
        return "give its key"
    return "update this offloader" if isinstance(error, NewerFormat) else ""
