"""How RocksDB is set up for the index."""

from __future__ import annotations

from typing import Final

import rocksdict

from tallybook.core.limits import MIB

LARGEST_WRITE_BUFFER_BYTES: Final = 8 * MIB
SMALLEST_WRITE_BUFFER_BYTES: Final = MIB
"""A write buffer is a quarter of the cache, within these: who gives the index little memory means all of it, and one
that is larger than needed makes a start replay more."""


def index_options(cache: rocksdict.Cache, cache_bytes: int, *, create: bool) -> rocksdict.Options:
    """The options of both tables, which share ``cache``, of ``cache_bytes``.

    Args:
        create: the database may be made where there is none.
    """
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(cache)
    # Otherwise they live outside the cache, where nothing bounds them.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    buffer_bytes = min(max(cache_bytes // 4, SMALLEST_WRITE_BUFFER_BYTES), LARGEST_WRITE_BUFFER_BYTES)
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(8 * buffer_bytes)
    options.set_max_open_files(256)
    # A write that is slowed down would hold the interpreter; rows are too few to fall behind with them.
    options.set_level_zero_slowdown_writes_trigger(100)
    options.set_level_zero_stop_writes_trigger(200)
    options.set_avoid_unnecessary_blocking_io(True)
    options.set_bytes_per_sync(MIB)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # A torn end is what a crash leaves; index_mark.py tells it from damage.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    return options
