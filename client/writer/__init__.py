"""The write path of a ledger: a pure state machine that decides, and a handle that drives it."""
