import math

import pytest

from rolloutpool_planner.queueing import Job, mixture_quantile, wait


def test_wait_of_an_mm1_queue() -> None:
    # Exponential work (E[w^2] / E[w]^2 = 2) of 0.1 s at 5/s: rho = 0.5, mean wait rho / (mu - lambda).
    queue = wait([Job(5.0, 0.1, 2.0)])

    assert queue.utilization == pytest.approx(0.5)
    assert queue.mean == pytest.approx(0.1)
    # P(wait > t) = rho exp(-(mu - lambda) t) = 0.05
    assert queue.quantile(0.95) == pytest.approx(math.log(0.5 / 0.05) / 5)


def test_wait_of_constant_work_is_half() -> None:
    assert wait([Job(5.0, 0.1)]).mean == pytest.approx(0.05)


def test_kinds_of_jobs_add_up() -> None:
    assert wait([Job(2.0, 0.1), Job(3.0, 0.1)]) == pytest.approx(wait([Job(5.0, 0.1)]))


def test_rare_waits_do_not_move_the_percentile() -> None:
    assert wait([Job(0.4, 0.1)]).quantile(0.95) == 0.0


def test_overload_waits_forever() -> None:
    assert wait([Job(11.0, 0.1)]).mean == math.inf


@pytest.mark.parametrize(
    ("parts", "quantile"),
    [
        pytest.param([], 0.0, id="nothing"),
        pytest.param([(0.04, 9.0)], 0.0, id="too rare"),
        pytest.param([(0.06, 9.0)], 9.0, id="frequent enough"),
        pytest.param([(0.04, 9.0), (0.04, 5.0)], 5.0, id="two together"),
        pytest.param([(2.0, 1.0), (2.0, 3.0)], 3.0, id="more than certain"),
    ],
)
def test_mixture_quantile(parts: list[tuple[float, float]], quantile: float) -> None:
    assert mixture_quantile(0.95, parts) == quantile
