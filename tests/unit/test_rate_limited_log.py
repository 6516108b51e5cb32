"""The rate limit of log lines: one line per kind and interval, with the number of suppressed ones."""

from tallybook.runtime.rate_limited_log import MAX_KINDS, LogRateLimiter


def test_the_first_line_of_a_kind_in_a_second_is_written_and_the_next_says_how_many_were_not():
    lines = LogRateLimiter()
    assert lines.due(10.0, "a") == 0
    assert [lines.due(10.0 + part / 10, "a") for part in range(1, 10)] == [None] * 9
    assert lines.due(11.0, "a") == 9
    assert lines.due(12.5, "a") == 0


def test_kinds_do_not_keep_each_other_from_being_written():
    lines = LogRateLimiter(60.0)
    assert [lines.due(0.0, kind) for kind in ("a", "b", "a", ("a", "b"))] == [0, 0, None, 0]


def test_what_is_over_and_comes_again_is_written_at_once():
    lines = LogRateLimiter(60.0)
    assert [lines.due(0.0, "a"), lines.due(1.0, "a")] == [0, None]
    lines.forget("a")
    lines.forget("never met")
    assert lines.due(2.0, "a") == 0


def test_kinds_that_come_for_ever_take_no_more_memory_and_one_that_goes_on_is_kept():
    lines = LogRateLimiter(1e9)
    assert lines.due(0.0, "goes on") == 0
    for number in range(10 * MAX_KINDS):
        assert lines.due(0.0, number) == 0
        assert lines.due(0.0, "goes on") is None
    assert len(lines._kinds) == MAX_KINDS
