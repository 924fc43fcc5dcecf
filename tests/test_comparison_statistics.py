"""Statistics of scores: hand-computed values, and those of rliable."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from discorl.runs import statistics
from discorl.types import UserError

RLIABLE = json.loads((Path(__file__).parent / "rliable" / "numbers.json").read_text())
CASES = RLIABLE["cases"]
NUMBERS = np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 9.0], [3.0, 7.0]])  # 4 runs of 2 tasks


# --- by hand --------------------------------------------------------------------------------------


def test_aggregates_by_hand():
    # Sorted 0 1 2 3 4 5 7 9: the middle half is 2 3 4 5. Means of the tasks: 1.5 and 6.25.
    assert statistics.interquartile_mean(NUMBERS) == 3.5
    assert statistics.median(NUMBERS) == 3.875
    assert statistics.mean(NUMBERS) == 3.875
    # Below 1: one run by 1. Below 3: three runs, by 3, 2 and 1.
    assert statistics.optimality_gap(NUMBERS) == pytest.approx(1 / 8)
    assert statistics.optimality_gap(NUMBERS, target=3.0) == pytest.approx(6 / 8)


def test_improvement_and_profile_by_hand():
    one, two = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 5.0], [0.0, 0.0]])
    # First task: 1=1, 1>0, 2>1, 2>0; second: 0<5, 0=0, twice.
    assert statistics.probability_of_improvement(one, two) == pytest.approx((3.5 + 1) / 8)
    assert statistics.probability_of_improvement(two, one) == pytest.approx((0.5 + 3) / 8)
    profile = statistics.profile(NUMBERS, np.array([-1.0, 0.0, 4.0, 8.0, 9.0]))
    np.testing.assert_allclose(profile, [1, 7 / 8, 3 / 8, 1 / 8, 0])


def test_runs_stay_within_their_task():
    """Tasks whose runs are all alike have no uncertainty, however much the tasks differ."""
    scores = np.tile([[0.0, 10.0, 20.0]], (5, 1))
    found = statistics.estimate(statistics.mean, scores)
    assert (found.low, found.value, found.high) == (10, 10, 10)
    flipped = statistics.estimate(statistics.mean, np.array([[0.0], [10.0], [20.0]]))
    assert flipped.low < 5 < 15 < flipped.high


def test_interval_of_a_mean():
    """Known in closed form: for many runs, 1.96 standard errors of the bootstrap on each side."""
    scores = np.random.default_rng(0).normal(size=(400, 2))
    found = statistics.estimate(statistics.mean, scores, samples=20_000)
    half = 1.96 * np.sqrt(np.mean(scores.var(axis=0)) / scores.size)
    assert found.high - found.value == pytest.approx(half, rel=0.04)
    assert found.value - found.low == pytest.approx(half, rel=0.04)


def test_bootstrap_is_a_function_of_its_seed(monkeypatch):
    scores = np.array(CASES[0]["x"])
    one, two, other = (statistics.estimate(statistics.mean, scores, seed=s) for s in (0, 0, 1))
    assert one == two
    assert one.low != other.low
    # Taking samples in pieces, to bound the memory, gives an interval all the same.
    monkeypatch.setattr(statistics, "_PIECE", 300)
    pieces = statistics.estimate(statistics.mean, scores)
    assert pieces.low == pytest.approx(one.low, abs=0.03)


def test_memory_does_not_grow_with_pairs_or_thresholds(monkeypatch):
    piece = 100_000
    monkeypatch.setattr(statistics, "_PIECE", piece)
    scores = np.random.default_rng(0).normal(size=(50, 10))
    thresholds = np.linspace(-1, 1, 100)
    for run in (
        lambda: statistics.estimate(
            statistics.probability_of_improvement, scores, scores + 0.1, samples=200
        ),
        lambda: statistics.estimate(
            lambda s: statistics.profile(s, thresholds), scores, samples=200
        ),
    ):
        tracemalloc.start()
        run()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # Samples, their indices, and a few arrays of their size on the way.
        assert peak < 6 * 8 * piece


def test_efficiency_curve_is_the_iqm_at_each_point():
    scores = np.stack([NUMBERS * scale for scale in (0.1, 0.5, 1.0)])
    curve = statistics.efficiency_curve(scores, samples=500)
    np.testing.assert_allclose(curve.value, [0.35, 1.75, 3.5])
    # A run is drawn with its whole curve, so here the interval scales with the value.
    np.testing.assert_allclose(curve.low / curve.value, [curve.low[0] / 0.35] * 3)
    assert (curve.low < curve.value).all()
    assert (curve.high > curve.value).all()


def test_scores_that_are_no_numbers_are_refused():
    for scores in (np.zeros((0, 2)), np.array([[1.0, np.nan]]), np.zeros(3)):
        with pytest.raises(UserError, match="expected finite numbers"):
            statistics.estimate(statistics.mean, scores)
    with pytest.raises(UserError, match="the same tasks"):
        statistics.estimate(
            statistics.probability_of_improvement, np.zeros((2, 3)), np.zeros((2, 4))
        )


# --- rliable --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(np.shape(case["x"])))
def test_numbers_of_rliable(case):
    x, y = np.array(case["x"]), np.array(case["y"])
    for scores, expected in ((x, case["aggregates"]), (y, case["aggregates_y"])):
        for name, value in expected.items():
            found = statistics.AGGREGATES[name].function(scores)
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-9, err_msg=name)
    improvement = statistics.probability_of_improvement(x, y)
    np.testing.assert_allclose(improvement, case["improvement"], rtol=0, atol=1e-9)
    found = statistics.profile(x, np.array(RLIABLE["thresholds"]))
    np.testing.assert_allclose(found, case["profile"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(np.shape(case["x"])))
def test_intervals_of_rliable(case):
    """Drawn with other random numbers, so equal up to the noise of the bootstrap."""
    x, y = np.array(case["x"]), np.array(case["y"])
    found = statistics.estimate(statistics.interquartile_mean, x, samples=20_000)
    np.testing.assert_allclose([found.low, found.high], case["iqm_interval"], atol=0.02)
    found = statistics.estimate(statistics.probability_of_improvement, x, y, samples=5_000)
    np.testing.assert_allclose([found.low, found.high], case["improvement_interval"], atol=0.03)
    thresholds = np.array(RLIABLE["thresholds"])
    found = statistics.estimate(lambda scores: statistics.profile(scores, thresholds), x)
    # Shares come in steps of one run, which a percentile may fall on either side of.
    step = 1 / x.size + 1e-9
    np.testing.assert_allclose([found.low, found.high], case["profile_interval"], atol=step)


def test_against_rliable_itself():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed here")
    scores = np.random.default_rng(3).normal(size=(7, 5))
    for name, aggregate in statistics.AGGREGATES.items():
        theirs = getattr(metrics, f"aggregate_{name}")(scores)
        np.testing.assert_allclose(aggregate.function(scores), theirs, rtol=0, atol=1e-9)
