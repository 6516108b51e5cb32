"""The option ``traces`` and the header ``traceparent``: accepted, refused, and ignored values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import BookieSettings, ClientSettings, GatewaySettings
from tallybook.core.trace_option import DEFAULT_SHARE, MAX_OPTION_CHARACTERS, TraceOption, parse_traces
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tracing.traceparent import MAX_CHARACTERS, TraceContext, decode_traceparent

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

contexts = st.builds(TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())


def test_nothing_is_traced_without_a_destination():
    assert parse_traces("") is None
    for model, needed in ((BookieSettings, {"data_directory": "/b"}), (GatewaySettings, {}), (ClientSettings, None)):
        given = {} if needed is None else {"metadata": "memory:", **needed}
        assert model(**given).traces == ""


@pytest.mark.parametrize(
    ("value", "endpoint", "share"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces", DEFAULT_SHARE),
        ("https://collector.example.org", "https://collector.example.org/v1/traces", DEFAULT_SHARE),
        ("http://127.0.0.1:4318,share=1", "http://127.0.0.1:4318/v1/traces", 1.0),
        ("https://[::1]:4318/otlp/v1/traces,share=0.001", "https://[::1]:4318/otlp/v1/traces", 0.001),
        ("http://c:4318/a,share=2,share=.5", "http://c:4318/a,share=2", 0.5),
    ],
)
def test_one_value_says_where_spans_go_and_how_many_there_are(value, endpoint, share):
    assert parse_traces(value) == TraceOption(endpoint, share)
    assert load_settings(ClientSettings, environment={"TALLYBOOK_TRACES": value}).traces == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("collector:4318", "not an OTLP over HTTP endpoint"),
        ("grpc://collector:4317", "not an OTLP over HTTP endpoint"),
        ("http://", "invalid host, port or path"),
        ("http://collector:port", "invalid host, port or path"),
        ("http://collector:0", "invalid host, port or path"),
        ("http://collector:65536", "invalid host, port or path"),
        ("http://collector:4318 ", "invalid host, port or path"),
        ("http://coll\nector:4318", "invalid host, port or path"),
        ("http://collector:4318,share=0", "the share must be above 0"),
        ("http://collector:4318,share=1.1", "the share must be above 0"),
        ("http://collector:4318,share=nan", "the share must be above 0"),
        ("http://collector:4318,share=1e-3", "the share must be above 0"),
        ("http://collector:4318,share=", "the share must be above 0"),
        ("http://me:hidden@collector:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector:4318?key=hidden", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector:4318/#hidden", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://c:4318/" + "x" * MAX_OPTION_CHARACTERS, "longer than"),
    ],
)
def test_what_is_no_endpoint_and_no_share_is_refused_in_words_that_repeat_no_secret(value, said):
    with pytest.raises(InvalidConfig, match=re.escape(said)) as refused:
        parse_traces(value)
    assert "hidden" not in refused.value.message
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        load_settings(ClientSettings, environment={"TALLYBOOK_TRACES": value})


@given(contexts)
def test_a_header_says_what_it_was_made_of(context):
    assert decode_traceparent(context.traceparent) == context
    assert len(context.traceparent) == len(HEADER)


def test_a_header_as_the_standard_shows_it_is_understood():
    assert decode_traceparent(HEADER) == TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert decode_traceparent(HEADER[:-2] + "00").sampled is False
    # Other flags may come; of a version to come, more may follow.
    assert decode_traceparent(HEADER[:-2] + "03").sampled is True
    assert decode_traceparent("01" + HEADER[2:] + "-what-is-to-come").sampled is True


@pytest.mark.parametrize(
    "value",
    [
        "",
        HEADER.upper(),
        HEADER[:-1],
        HEADER + "0",
        HEADER + "-more",
        " " + HEADER,
        HEADER + "\n",
        "ff" + HEADER[2:],
        "01" + HEADER[2:] + "more",
        "01" + HEADER[2:] + "-" + "x" * MAX_CHARACTERS,
        HEADER.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        HEADER.replace("b7ad6b7169203331", "0" * 16),
        HEADER.replace("-", "_"),
        HEADER.replace("0af", "0ag"),
        "\u0660" * 55,
    ],
)
def test_what_is_no_header_is_as_good_as_none(value):
    assert decode_traceparent(value) is None
