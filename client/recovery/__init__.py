"""Recovery: fence a ledger, find its last acknowledged entry, write back what is under-replicated, and close it."""
