"""The gateway: ledgers and streams over gRPC, for programs in any language.

    client in Go, Java, ... -- LedgerService (proto/ledger.proto) --> gateway ------------> quorum client --> bookies
                            -- StreamService (proto/stream.proto) -->         -- streams -->

Start at ``service``, and at ``stream_service``. docs/gateway.md tells how to use them. gRPC itself is known to
``tallybook.runtime.grpc_calls`` only; here a call is something that gives and takes encoded messages and ends with a
status.
"""
