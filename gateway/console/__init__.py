"""HTTP console for operators: JSON endpoints and a web page that shows them.

``server.py`` is the entrance, ``routes.py`` the table of endpoints with their permissions. ``bookies.py``,
``ledgers.py``, ``streams.py`` and ``maintenance.py`` implement them; ``cluster_view.py`` builds the overview from
background polls (``polling.py``). ``static/`` is the page, without a build step.

The console is stateless: any number of consoles may serve one cluster. No protobuf and no gRPC here.
"""
