"""Reading lines from standard input into ledgers and streams, and printing entries and records as lines."""
