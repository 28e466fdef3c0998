"""Where there is no API server, the same rules refuse the same objects with the same words."""

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.local.rules import broken_rules
from rolloutpool_testkit.manifests import Manifest, pool_manifest
from rolloutpool_testkit.refusals import REFUSED_ON_CREATE, REFUSED_ON_UPDATE


@pytest.mark.parametrize(("message", "manifest"), REFUSED_ON_CREATE)
def test_refused_on_create(message: str, manifest: Manifest) -> None:
    (problem,) = broken_rules(parse_pool(manifest).to_wire())
    assert problem.endswith(message)


@pytest.mark.parametrize(("message", "manifest"), REFUSED_ON_UPDATE)
def test_refused_on_update(message: str, manifest: Manifest) -> None:
    stored = parse_pool(pool_manifest("immutable")).to_wire()
    changed = parse_pool(manifest).to_wire()
    assert broken_rules(changed, stored) == (message,)
    assert broken_rules(changed) == ()


def test_a_good_object_breaks_none() -> None:
    assert broken_rules(parse_pool(pool_manifest()).to_wire()) == ()


def test_a_rule_about_a_part_names_the_part() -> None:
    wrong = pool_manifest(
        workloads=[{"name": "a", "share": 1, "priors": {"promptTokens": {"p50": 9, "p95": 3}}}]
    )
    (problem,) = broken_rules(parse_pool(wrong).to_wire())
    assert problem.startswith("spec.workloads.0.priors.promptTokens: a token prior needs p95 >= p50")


def test_names_that_must_differ() -> None:
    twice = pool_manifest(workloads=[{"name": "a", "share": 0.5}, {"name": "a", "share": 0.5}])
    assert broken_rules(parse_pool(twice).to_wire()) == (
        "spec.workloads.1: name 'a' is there twice: rename or remove one",
    )
