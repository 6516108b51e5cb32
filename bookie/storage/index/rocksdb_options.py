"""RocksDB options of the index."""

from __future__ import annotations

from typing import Final

import rocksdict

from tallybook.core.limits import MIB

LARGEST_WRITE_BUFFER_BYTES: Final = 8 * MIB
SMALLEST_WRITE_BUFFER_BYTES: Final = MIB
"""A write buffer is a quarter of the cache, within these limits: a small index cache limits all memory, and a larger
buffer than needed makes a start replay more."""


def index_options(cache: rocksdict.Cache, cache_bytes: int, *, create: bool) -> rocksdict.Options:
    """The options of both tables, which share ``cache``, of ``cache_bytes``.

    Args:
        create: create the database if there is none.
    """
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(cache)
    # Otherwise index blocks live outside the cache, without a limit.
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
    # RocksDB would throttle a write while it holds the GIL; rows are too few for compaction to fall behind.
    options.set_level_zero_slowdown_writes_trigger(100)
    options.set_level_zero_stop_writes_trigger(200)
    options.set_avoid_unnecessary_blocking_io(True)
    options.set_bytes_per_sync(MIB)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # A crash leaves a torn end; durable_mark.py tells it from damage.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    return options
