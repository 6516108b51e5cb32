"""A directory as an object store: foreign files in it are left alone."""

from pathlib import Path

from tallybook.archive.objects.open import open_store
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng


async def test_a_folder_that_no_key_leads_through_is_not_entered(tmp_path: Path) -> None:
    """Only root may list ``lost+found`` at the root of a mount; here, a link to itself in it cannot be followed."""
    for folder in ("lost+found", ".Trash-0"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "loop").symlink_to("loop")
    store = await open_store(f"file://{tmp_path}", RealClock(), SystemRng())
    try:
        await store.put("ledgers/a", b"x")
        await store.upload("ledgers/b").write(bytes(5 << 20))
        assert [found.key async for page in store.list() for found in page] == ["ledgers/a"]
        assert [found.key for found in await store.unfinished_uploads()] == ["ledgers/b"]
    finally:
        await store.close()
