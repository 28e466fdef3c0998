"""The watch audit: what was read or written must come back."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_operator.core.liveness import WatchAudit

POD = ("Pod", "u1")


def audit() -> WatchAudit:
    found = WatchAudit(limit_seconds=100.0)
    found.api_answered(0.0)
    return found


def test_a_version_that_never_comes_is_told() -> None:
    watch = audit()
    watch.expect("rl/pool", {POD: "7"}, now=0.0)
    assert watch.verdict(100.0) == ""
    assert watch.verdict(131.0) == "the watch of Pod is deaf: a change of rl/pool is overdue by 131 s"


def test_delivery_before_or_after_is_fine() -> None:
    watch = audit()
    watch.delivered("Pod", "u1", "7")
    watch.expect("rl/pool", {POD: "7"}, now=0.0)
    watch.expect("rl/pool", {POD: "8"}, now=1.0)
    watch.delivered("Pod", "u1", "8")
    assert watch.verdict(500.0) == ""


def test_newer_was_delivered_than_was_read() -> None:
    watch = audit()
    watch.delivered("Pod", "u1", "10")
    watch.expect("rl/pool", {POD: "9"}, now=0.0)
    assert watch.verdict(500.0) == ""


def test_versions_that_are_no_numbers_compare_as_they_are() -> None:
    watch = audit()
    watch.delivered("Pod", "u1", "b")
    watch.expect("rl/pool", {POD: "b"}, now=0.0)
    assert watch.verdict(500.0) == ""
    watch.expect("rl/pool", {POD: "a"}, now=500.0)
    assert watch.verdict(700.0) != ""


def test_the_first_wait_counts_not_the_last() -> None:
    watch = audit()
    for second in range(0, 121, 10):
        watch.expect("rl/pool", {POD: str(second + 1)}, now=float(second))
    assert watch.verdict(120.0) != ""


def test_objects_that_are_gone_are_not_waited_for() -> None:
    watch = audit()
    watch.expect("rl/pool", {POD: "7"}, now=0.0)
    watch.expect("rl/pool", {}, now=50.0)
    assert watch.verdict(500.0) == ""
    watch.expect_one("rl/pool", "Pod", "u1", "8", now=500.0)
    watch.forget("rl/pool")
    assert watch.verdict(900.0) == ""


def test_an_api_server_that_is_away_kills_nobody() -> None:
    watch = audit()
    watch.expect_one("the heartbeat", "Lease", "u2", "1", now=0.0)
    watch.api_failed(50.0)
    assert watch.verdict(1000.0) == ""
    assert WatchAudit(limit_seconds=1.0).verdict(1000.0) == ""


def test_after_it_is_back_watches_have_the_full_time_again() -> None:
    watch = audit()
    watch.expect_one("the heartbeat", "Lease", "u2", "1", now=0.0)
    watch.api_failed(50.0)
    watch.api_answered(1000.0)
    watch.api_answered(1050.0)
    assert watch.verdict(1100.0) == ""
    assert watch.verdict(1101.0) != ""


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 20), st.floats(0, 1000)),
        max_size=40,
    )
)
def test_a_watch_that_delivers_all_is_never_deaf(steps: list[tuple[bool, int, int, float]]) -> None:
    """Whatever is read, as long as everything is delivered within the limit."""
    watch, now = audit(), 0.0
    for written, uid, version, passed in steps:
        now += passed
        watch.api_answered(now)
        if written:
            watch.expect_one("rl/pool", "Pod", str(uid), str(version), now)
        else:
            watch.expect("rl/pool", {("Pod", str(uid)): str(version)}, now)
        watch.delivered("Pod", str(uid), str(version))
        assert watch.verdict(now) == ""


def test_a_request_that_fails_now_and_then_hides_no_deaf_watch() -> None:
    watch = audit()
    watch.expect("rl/pool", {POD: "7"}, now=0.0)
    for second in range(0, 200, 50):
        watch.api_failed(float(second))
        watch.api_answered(second + 1.0)
    assert "overdue by 199 s" in watch.verdict(199.0)
