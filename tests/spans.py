"""The spans of all parts, in the order of docs/operate/tracing.md."""

from tallybook.archive.objects.retries import OBJECT_READ
from tallybook.bookie.spans import SPANS as SPANS_OF_A_BOOKIE
from tallybook.client.spans import SPANS as SPANS_OF_A_CLIENT
from tallybook.gateway.interceptor import CALL

SPANS = (*SPANS_OF_A_CLIENT, OBJECT_READ, *SPANS_OF_A_BOOKIE, CALL)
SPAN_NAMES = {span.name: span for span in SPANS}
