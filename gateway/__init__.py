"""gRPC gateway: ledgers and streams for programs in any language.

    client in Go, Java, ... -- LedgerService (ledger.proto) --> ledgers/ -----------------> ledger client --> bookies
                            -- StreamService (stream.proto) --> streams/ --> StreamStore --> ledger client --> bookies

``server.py`` is the entrance; ``ledgers/service.py`` and ``streams/service.py`` hold the RPC handlers. ``console/`` is
the HTTP console. No module here imports gRPC: ``tallybook.runtime.grpc.call_server`` does, and a handler sees a call
as a port that receives and sends encoded messages and ends with a status. docs/use/gateway.md describes the API.
"""
