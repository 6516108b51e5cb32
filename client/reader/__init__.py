"""The read path of a ledger: whole ranges, tailing, and verification of every byte that is returned."""
