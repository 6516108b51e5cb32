"""The only door to the outside world: clock, randomness, disk, network, tasks, threads and processes. Each is a small
protocol with a real implementation, so that tests and the simulator can put another one in its place.
"""
