"""What a request's path says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.paths import POST_ONLY, Kind, Target, read_target

PREFIXES = {"/math/hard": "agentic", "/math": "rlvr"}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        pytest.param("POST", CHAT, "", Target(Kind.GENERATE, CHAT), id="chat"),
        pytest.param("POST", f"/v1{CHAT}", "", Target(Kind.ADMIN, f"/v1{CHAT}"), id="twice"),
        pytest.param("POST", CHAT, "a=1", Target(Kind.GENERATE, f"{CHAT}?a=1"), id="query-is-kept"),
        pytest.param("GET", CHAT, "", Target(Kind.WRONG_METHOD, CHAT), id="get-of-a-generation"),
        pytest.param("POST", f"/sessions/s1{CHAT}", "", Target(Kind.GENERATE, CHAT, "s1"), id="session"),
        pytest.param("POST", f"/sessions/a%2Fb{CHAT}", "", Target(Kind.GENERATE, CHAT, "a/b"), id="quoted"),
        pytest.param("POST", "/sessions/s1", "", Target(Kind.ADMIN, "/sessions/s1"), id="session-alone"),
        pytest.param(
            "POST", f"/sessions/{CHAT}", "", Target(Kind.ADMIN, f"/sessions/{CHAT}"), id="empty-session"
        ),
        pytest.param("POST", f"/math{CHAT}", "", Target(Kind.GENERATE, CHAT, None, "rlvr"), id="class"),
        pytest.param(
            "POST", f"/math/hard{CHAT}", "", Target(Kind.GENERATE, CHAT, None, "agentic"), id="longest-prefix"
        ),
        pytest.param(
            "POST", f"/mathematics{CHAT}", "", Target(Kind.ADMIN, f"/mathematics{CHAT}"), id="whole-names"
        ),
        pytest.param(
            "POST",
            f"/math/sessions/s{CHAT}",
            "",
            Target(Kind.GENERATE, CHAT, "s", "rlvr"),
            id="class-and-session",
        ),
        pytest.param(
            "POST",
            f"/sessions/s/math/hard{CHAT}",
            "",
            Target(Kind.GENERATE, CHAT, "s", "agentic"),
            id="session-and-class",
        ),
        pytest.param(
            "POST",
            f"/math/sessions/s/math{CHAT}",
            "",
            Target(Kind.ADMIN, f"/math{CHAT}", "s", "rlvr"),
            id="class-once",
        ),
        pytest.param("POST", "/tokenize", "", Target(Kind.ANY_ENGINE, "/tokenize"), id="tokenize"),
        pytest.param(
            "POST", "/finish_session", "x=1", Target(Kind.FINISH, "/finish_session?x=1"), id="finish"
        ),
        pytest.param("GET", "/metrics", "", Target(Kind.ADMIN, "/metrics"), id="metrics"),
    ],
)
def test_a_target_is_taken_apart(method: str, path: str, query: str, expected: Target) -> None:
    assert read_target(method, path, query, PREFIXES) == expected


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("query", ["", "a=1"])
@pytest.mark.parametrize("path", [*sorted(POST_ONLY), "/v1/models", f"/sessions/s{CHAT}"])
def test_prefixes_of_other_paths_change_nothing(method: str, path: str, query: str) -> None:
    assert read_target(method, path, query, {}) == read_target(method, path, query, PREFIXES)


@given(path=st.text(alphabet="/%abs\x00.é", max_size=40))
def test_no_path_breaks_it(path: str) -> None:
    assert read_target("POST", "/sessions/" + path, "", PREFIXES).kind is not None
