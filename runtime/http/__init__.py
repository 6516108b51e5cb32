"""HTTP: the server of health, metrics and endpoints of a process, and the client that reads from other processes.

``server`` is the entrance. A request passes ``tls`` and ``protocol`` (connection and time limits), then ``guard``
(validation, authentication, routing), then a handler from the table of ``endpoints``. ``client`` fetches from the ports
of other processes, ``scrape`` their metrics. What an endpoint does is in the part that offers it, not here.
"""
