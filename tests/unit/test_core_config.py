"""The settings models: accepted and refused values; no value can switch off what keeps data safe."""

import pytest
from pydantic import ValidationError

from tallybook.core.limits import BLOCK_BYTES, MAX_BATCH_BYTES, MAX_COMMIT_BYTES, MAX_ENTRY_BYTES, MIB
from tallybook.core.settings import (
    AdmissionSettings,
    BackgroundSettings,
    BookieSettings,
    ClientSettings,
    CollectionSettings,
    ConsoleSettings,
    GatewaySettings,
    JournalSettings,
    Settings,
    StorageSettings,
)

MODELS = [JournalSettings, StorageSettings, AdmissionSettings, CollectionSettings, BookieSettings, ClientSettings]
REQUIRED = {BookieSettings: {"data_directory": "/data", "metadata": "sqlite:///x"}}
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


def make(model, **values):
    return model(**REQUIRED.get(model, {}) | values)


def refusal(model, **values):
    with pytest.raises(ValidationError) as refused:
        make(model, **values)
    return str(refused.value)


@each_model
def test_the_defaults_are_valid_and_every_setting_is_described(model):
    settings = make(model)
    for name, field in model.model_fields.items():
        nested = isinstance(getattr(settings, name), Settings)
        assert nested or (field.description and field.description.endswith(".")), name


@each_model
def test_an_unknown_name_is_refused(model):
    assert "no_such_setting" in refusal(model, no_such_setting=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 * MIB),
        ("64 MiB", 64 * MIB),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("1.5MiB", 3 * MIB // 2),
        (4096, 4096),
    ],
)
def test_sizes_are_plain_bytes_or_have_a_unit_and_decimal_units_are_not_binary_ones(text, size):
    assert StorageSettings(read_cache_bytes=text).read_cache_bytes == size


@pytest.mark.parametrize(
    "value", [-1, "-2", "-1MiB", "nan", float("inf"), "", None, "1 parsec", "1e3", True, False, 2**61]
)
def test_a_size_that_is_no_size_is_refused(value):
    refusal(StorageSettings, read_cache_bytes=value)


@pytest.mark.parametrize("value", [-1, 86_400_001, 5.5, "soon", None, True, float("nan")])
def test_a_duration_that_is_no_duration_is_refused(value):
    refusal(StorageSettings, flush_interval_ms=value)


SWITCHED_OFF_BY_ZERO = ("quarantine_ms", "speculative_read_ms")


@pytest.mark.parametrize(
    "name", [name for name in ClientSettings.model_fields if name.endswith("_ms") and name not in SWITCHED_OFF_BY_ZERO]
)
def test_a_client_that_would_not_wait_at_all_is_refused(name):
    assert name in refusal(ClientSettings, **{name: 0})
    assert getattr(make(ClientSettings, **{name: 1}), name) == 1


@pytest.mark.parametrize("value", [0, -1, 1_000_001, True, "many"])
def test_a_count_that_is_no_count_is_refused(value):
    refusal(StorageSettings, read_threads=value)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (StorageSettings, "write_cache_bytes"),
        (StorageSettings, "entry_log_bytes"),
        (AdmissionSettings, "max_inflight_bytes"),
        (AdmissionSettings, "stream_credit_bytes"),
        (ClientSettings, "read_bytes"),
    ],
)
def test_a_budget_through_which_nothing_would_pass_is_refused(model, name):
    assert name in refusal(model, **{name: 0})
    assert getattr(make(model, **{name: BLOCK_BYTES}), name) == BLOCK_BYTES


def test_zero_is_kept_where_it_means_something():
    settings = StorageSettings(read_cache_bytes=0, read_ahead_bytes=0, min_free_bytes="0")
    assert (settings.read_cache_bytes, settings.read_ahead_bytes, settings.min_free_bytes) == (0, 0, 0)
    assert BackgroundSettings(max_bytes_per_second=0).max_bytes_per_second == 0
    assert "min_bytes_per_second" in refusal(BackgroundSettings, max_bytes_per_second=MIB)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"segment_bytes": 64 * MIB + 512}, "multiples of 4 KiB"),
        ({"max_commit_bytes": 5000}, "multiples of 4 KiB"),
        ({"max_commit_bytes": BLOCK_BYTES}, "8 KiB .. 1 MiB"),
        ({"max_commit_bytes": MAX_COMMIT_BYTES + BLOCK_BYTES}, "8 KiB .. 1 MiB"),
        ({"segment_bytes": 2 * MAX_COMMIT_BYTES - BLOCK_BYTES}, "two of the largest group commits"),
        ({"segment_count": 2}, "at least 3"),
    ],
)
def test_a_journal_that_could_not_work_is_refused(values, reason):
    assert reason in refusal(JournalSettings, **values)
    JournalSettings(segment_bytes=4 * BLOCK_BYTES, max_commit_bytes=2 * BLOCK_BYTES, segment_count=3)  # the smallest


def test_the_journal_must_hold_the_write_cache_with_one_segment_to_spare():
    journal = JournalSettings(segment_bytes="16MiB", segment_count=3)
    make(BookieSettings, journal=journal, storage={"write_cache_bytes": 32 * MIB})
    assert "write-cache" in refusal(BookieSettings, journal=journal, storage={"write_cache_bytes": 32 * MIB + 1})


@pytest.mark.parametrize("name", ["data_directory", "metadata"])
def test_a_bookie_must_be_told_where_its_data_and_its_metadata_are(name):
    values = REQUIRED[BookieSettings]
    with pytest.raises(ValidationError, match=name):
        BookieSettings(**{key: value for key, value in values.items() if key != name})
    assert name in refusal(BookieSettings, **{name: ""})


@pytest.mark.parametrize(
    "values",
    [
        {"max_batch_bytes": 255},
        {"max_batch_bytes": MAX_BATCH_BYTES + 1},
        {"max_entry_bytes": MAX_ENTRY_BYTES + 1},
        {"max_pending_bytes": 256 * 1024 - 1},
    ],
)
def test_a_client_that_could_not_send_is_refused(values):
    refusal(ClientSettings, **values)


@pytest.mark.parametrize("name", ["listen", "http_listen", "advertise"])
@pytest.mark.parametrize(
    "value", ["127.0.0.1:80a", "127.0.0.1", "host:65536", ":1", "a:b:1", "[::1:1", "http://a:1", "a b:1"]
)
def test_an_address_is_a_host_and_a_port(name, value):
    assert "expected HOST:PORT" in refusal(BookieSettings, **{name: value})
    for good in ("127.0.0.1:0", "host.example:65535", "[::1]:1", "0.0.0.0:80"):
        assert getattr(make(BookieSettings, **{name: good}), name) == good


@pytest.mark.parametrize("value", ["a/b", "a b", "x" * 129, "\n"])
def test_a_bookie_id_is_letters_and_digits_before_it_names_anything(value):
    assert "letters, digits" in refusal(BookieSettings, bookie_id=value)


def test_a_gateway_has_fewer_batches_in_flight_by_default():
    assert GatewaySettings(metadata="x").client.max_in_flight_batches == 3
    assert GatewaySettings(metadata="x", client={"read_bytes": "1MiB"}).client.max_in_flight_batches == 3
    assert GatewaySettings(metadata="x", client={"max_in_flight_batches": 8}).client.max_in_flight_batches == 8


@pytest.mark.parametrize(
    "value", ["gateway", "gateway:http", "gate way:7401", "gateway\x01:7401", "gateway:7401;b:7401"]
)
def test_a_console_gets_processes_by_host_and_port(value):
    with pytest.raises(ValidationError, match="expected HOST:PORT"):
        ConsoleSettings(metadata="sqlite:///x", processes=f"gateway-1:7401, {value}")
    given = ConsoleSettings(metadata="sqlite:///x", processes="gateway-1:7401, [::1]:7401")
    assert given.processes == ("gateway-1:7401", "[::1]:7401")
