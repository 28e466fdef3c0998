"""Names of children fit into what Kubernetes allows."""

from rolloutpool_api import labels

LONGEST_POOL = "p" * labels.MAX_POOL_NAME
MOST_IN_A_SET_NAME = 52
"""63 characters of a label, less the hash that a StatefulSet appends for controller-revision-hash."""


def test_the_longest_names_fit() -> None:
    group = labels.group_name("aggregated", 64, 64)
    assert len(labels.engine_set_name(LONGEST_POOL, group)) <= MOST_IN_A_SET_NAME
    assert len(labels.router_name(LONGEST_POOL)) <= 63
    assert len(labels.engine_service_name(LONGEST_POOL)) <= 63


def test_group_names() -> None:
    assert labels.group_name("decode", 2, 1) == "decode-tp2"
    assert labels.group_name("prefill", 8, 2) == "prefill-tp8-pp2"
