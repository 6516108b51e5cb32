"""What is known about ledgers and bookies: a frozen model with pure transitions, its encoding, and the ports that store
it. The drivers behind the ports are `memory`, `sqlite` and `zookeeper`.
"""
