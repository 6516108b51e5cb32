"""How costs grow with bookies, clients, ledgers and streams: `python -m tallybook.bench.scale`.

``processes.py`` varies the number of bookies and of clients, ``many.py`` the number of ledgers and of streams, which
the programs in ``many_load.py`` open. ``page.py`` has the text and the tables of the page. There are no gates.
"""
