"""The gateway: ledgers over gRPC, for programs in any language.

    client in Go, Java, ... -- LedgerService (proto/ledger.proto) --> gateway -- quorum client --> bookies

Start at ``service``. The interface is ``proto/ledger.proto``; docs/gateway.md tells how to use it. gRPC itself is known
to ``tallybook.runtime.grpc_calls`` only; here a call is something that gives and takes encoded messages and ends with
a status.
"""
