"""The quorum client: writes, reads and recovers ledgers over several bookies."""
