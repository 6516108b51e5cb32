"""The processes of ``tallybook up``: bookies, gateway and console as children, offloader and repair in the command.

Entrance: ``launcher.LocalCluster``. Only ``up`` and the demo use this.
"""
