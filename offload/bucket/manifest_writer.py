"""Keeps the manifest of the bucket up to date: replaces it when it says something else than the metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

from tallybook.archive.manifest import MANIFEST_KEY, Manifest, encode_manifest, read_manifest
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object
from tallybook.core.errors import ArchiveKeyMissing, ArchiveUnavailable, DamagedFile, NewerFormat, TallybookError
from tallybook.core.marks import sometimes
from tallybook.runtime.tasks import Workers


class ManifestWriter:
    """The manifest of one bucket, as one process knows it.

    Args:
        workers: where it is encoded and decoded.
    """

    def __init__(self, store: ObjectStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._listed: ObjectInfo | None = None
        self.cluster_id: str | None = None
        """Of the cluster whose bucket it says that this is; ``None`` if it does not say."""
        self.ledgers: Mapping[int, str] = {}
        """The ledgers that it counts, and the object of each; empty if that is not known."""
        self.objects: Mapping[str, Collection[int]] = {}
        """The objects that it names, and the ledgers that it counts in each; empty if that is not known."""
        self.dropped: frozenset[str] = frozenset()
        """Those of them that no ledger counts in."""
        self.unreadable = ""
        """Why the one that was loaded last could not be read, so that it does not say which ledgers it counts."""
        self.remedy = ""
        """What makes it readable, where it can be read as it is, so that it must not be replaced; else empty."""
        self._content = b""
        """SHA-256 of what it holds; empty if that is not known."""

    async def load(self, listed: ObjectInfo | None) -> Manifest | None:
        """The manifest, if it may be another one than this process knows; ``None`` if not, or if there is none.

        Args:
            listed: what a listing shows of it.

        Raises:
            ArchiveUnavailable: the store does not answer.
            ArchiveDenied: the store refuses this object, and others.
        """
        if listed is not None and listed == self._listed:
            return None
        # Until it was read, nothing is known of it: where reading it fails, it is read again, changed or not.
        self._listed, self._content, self.cluster_id = None, b"", None
        self.unreadable, self.remedy = "", ""
        if listed is None:
            return None
        try:
            manifest = await read_manifest(self._store, self._workers)
        except (DamagedFile, *OBJECT_ERRORS) as error:
            # A time-out says nothing of the manifest, and a storm nothing of this object.
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
        """Replace the manifest, unless it is the same; whether it was replaced.

        Raises:
            ArchiveUnavailable, ArchiveDenied: it may not have been.
        """
        data = await self._workers.run(encode_manifest, manifest)
        content = sha256(data).digest()
        if content == self._content:
            return False
        self._content = b""
        await self._store.put(MANIFEST_KEY, data)
        # What a listing will show is not known: another process may replace it meanwhile. It is read once more then.
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
