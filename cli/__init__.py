"""The ``tallybook`` command line.

Entrance: ``__main__``, which loads ``app``; ``app.COMMANDS`` names the module of each command. ``commands`` has one
module for each group of commands, ``lines`` feeds and prints lines of ledgers and streams, ``local`` runs the child
processes of ``tallybook up``, ``demo`` is ``tallybook demo``. Modules here parse options, call a public function of
another part and print the result. They hold no logic of the cluster, and no other part imports them.
"""
