"""What ends calls over gRPC that are refused, and how long a test of such calls may take."""

from __future__ import annotations

from typing import Final

import grpc

DEADLINE_SECONDS: Final = 30

DENIED: Final = grpc.StatusCode.PERMISSION_DENIED
NOT_KNOWN: Final = grpc.StatusCode.UNAUTHENTICATED
EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED
