"""The console: a cluster over HTTP, for operators. Endpoints that answer with JSON, and a page that shows them.

    routes.py       the table of all endpoints: who may call them, and what does them
    bookies.py, ledgers.py, streams.py, upkeep.py
                    what they do
    cluster_view.py what the page shows at one glance, made once for all who look
    watch.py        looks that go on beside requests, and of what they found last
    diagnosing.py   what the cluster waits for, by the last looks
    tails.py, lags.py
                    where streams end, and how far subscriptions are behind
    auditing.py     a round of an auditor on demand
    leading.py      who audits, and whether it still does
    scrape.py       the numbers of bookies
    server.py       all of it as a process
    static/         the page: HTML, CSS and JavaScript as they are, without a build

It keeps nothing, and any number may serve one cluster. It is in the folder of the gateway because it is one: a client
of the cluster that serves others.
"""
