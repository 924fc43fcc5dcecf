"""The maths of returns against loops over definitions, numbers worked by hand, and properties."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discorl.rules import returns

LAMBDA = 0.9
STEPS, BATCH = 9, 4
quick = settings(deadline=None, max_examples=40)
with_and_without_jit = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Experience:
    """Random inputs, [T, B], with terminations and truncations; values and traces at [T+1, B]."""

    def __init__(self, seed: int, end_rate: float = 0.2):
        rng = np.random.default_rng(seed)
        shape, longer = (STEPS, BATCH), (STEPS + 1, BATCH)
        terminated = rng.random(shape) < end_rate
        self.cut = terminated | (rng.random(shape) < end_rate)
        self.reward = rng.normal(size=shape)
        self.discount = 0.97 * (1 - terminated)
        self.value = rng.normal(size=longer)
        self.q = rng.normal(size=longer)
        self.rho = np.exp(rng.normal(size=shape))
        self.trace = LAMBDA * np.minimum(1, np.exp(rng.normal(size=longer)))


def n_step(x: Experience) -> np.ndarray:
    """Discounted sum of rewards, with the next value where the trajectory ends or is cut."""
    g = np.zeros_like(x.reward)
    for b in range(BATCH):
        for t in range(STEPS):
            scale = 1.0
            for s in range(t, STEPS):
                g[t, b] += scale * x.reward[s, b]
                scale *= x.discount[s, b]
                if x.cut[s, b] or s == STEPS - 1:
                    g[t, b] += scale * x.value[s + 1, b]
                    break
    return g


def sum_of_errors(x: Experience, error: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Sum over s >= t, up to the cut, of error_s times the product of decay from t to s - 1."""
    total = np.zeros_like(error)
    for b in range(BATCH):
        for t in range(STEPS):
            scale = 1.0
            for s in range(t, STEPS):
                total[t, b] += scale * error[s, b]
                scale *= decay[s, b]
                if x.cut[s, b]:
                    break
    return total


# --- values ---------------------------------------------------------------------------------------


def test_squash_by_hand() -> None:
    x = jnp.array([0.0, 3.0, -8.0, 99.0])
    np.testing.assert_allclose(returns.squash(x), [0, 1.003, -2.008, 9.099], rtol=1e-6)


def test_squash_follows_its_definition(float64: None) -> None:
    x = np.linspace(-500, 500, 1001)
    expected = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.001 * x
    np.testing.assert_allclose(returns.squash(jnp.asarray(x)), expected, rtol=1e-13)


def test_slopes_at_zero() -> None:
    assert jax.grad(returns.squash)(0.0) == pytest.approx(0.501)
    assert jax.grad(returns.unsquash)(0.0) == pytest.approx(1 / 0.501)


@quick
@given(exponent=st.floats(-6, 6), sign=st.sampled_from([-1, 1]))
@pytest.mark.parametrize(("wide", "tolerance"), [(True, 1e-14), (False, 1e-6)])
def test_unsquash_inverts_squash(wide: bool, tolerance: float, exponent: float, sign: int) -> None:
    with jax.enable_x64(wide):
        x = jnp.asarray(sign * 10**exponent)
        assert x.dtype == (jnp.float64 if wide else jnp.float32)
        np.testing.assert_allclose(returns.unsquash(returns.squash(x)), x, rtol=tolerance)


def test_bins_are_integers_around_zero() -> None:
    np.testing.assert_array_equal(returns.bins(5, jnp.float32), [-2, -1, 0, 1, 2])
    support = returns.bins(601, jnp.float32)
    assert (support.shape, support[0], support[-1]) == ((601,), -300, 300)


@with_and_without_jit
def test_categorical_value(wrap: Callable, float64: None) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 2, 7)) * 3
    expected = np.zeros((3, 2))
    for index in np.ndindex(3, 2):
        weights = [np.exp(x) for x in logits[index]]
        mean = sum(w * i for w, i in zip(weights, range(-3, 4), strict=True)) / sum(weights)
        # h is increasing, so bisection finds what h maps to the mean.
        low, high = -100.0, 100.0
        for _ in range(100):
            middle = (low + high) / 2
            squashed = np.sign(middle) * (np.sqrt(abs(middle) + 1) - 1) + 0.001 * middle
            low, high = (middle, high) if squashed < mean else (low, middle)
        expected[index] = low
    np.testing.assert_allclose(wrap(returns.categorical_value)(jnp.asarray(logits)), expected)


def test_categorical_value_of_huge_logits_is_finite() -> None:
    logits = jnp.array([1e4, 0.0, -1e4])
    np.testing.assert_allclose(returns.categorical_value(logits), returns.unsquash(jnp.array(-1.0)))


def test_two_hot_by_hand() -> None:
    lower = 0.75 / (1 + 1e-5)
    expected = np.zeros((4, 5))
    expected[0, 2:4] = lower, 1 - lower
    expected[1, 1] = expected[2, 4] = expected[3, 0] = 1
    actual = returns.two_hot(jnp.array([0.25, -1.0, 7.0, -2.5]), 5)
    np.testing.assert_allclose(actual, expected, atol=1e-7)


@quick
@given(x=st.floats(-9, 9, width=32))
def test_two_hot_recovers_its_value(x: float) -> None:
    weights = np.asarray(returns.two_hot(jnp.float32(x), 11))
    support = np.arange(-5, 6)
    nearest = np.abs(support - np.clip(x, -5, 5)) <= 1
    assert weights.min() >= 0
    assert not weights[~nearest].any()
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(weights @ support, np.clip(x, -5, 5), atol=1.2e-5)


def test_categorical_value_undoes_two_hot(float64: None) -> None:
    x = jnp.array([-20.0, -0.3, 0.0, 1.0, 34.5])
    value = returns.categorical_value(jnp.log(returns.two_hot(returns.squash(x), 21) + 1e-300))
    np.testing.assert_allclose(returns.squash(value), returns.squash(x), atol=1e-5)


def test_kl_and_entropy(float64: None) -> None:
    rng = np.random.default_rng(1)
    target, logits = rng.normal(size=(2, 3, 4))
    p = np.exp(target) / np.exp(target).sum(-1, keepdims=True)
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(returns.categorical_kl(target, logits), (p * np.log(p / q)).sum(-1))
    np.testing.assert_allclose(returns.entropy(logits), -(q * np.log(q)).sum(-1))
    np.testing.assert_allclose(returns.entropy(jnp.zeros(8)), np.log(8))


def test_take_action_and_ratio(float64: None) -> None:
    rng = np.random.default_rng(2)
    values = jnp.asarray(rng.normal(size=(3, 2, 4, 5)))
    action = jnp.asarray(rng.integers(4, size=(3, 2)))
    taken = returns.take_action(values, action)
    logits, behaviour = values[..., 0], values[..., 1]
    ratio = returns.importance_ratio(logits, behaviour, action)
    for t, b in np.ndindex(3, 2):
        a = action[t, b]
        np.testing.assert_array_equal(taken[t, b], values[t, b, a])
        pi = np.exp(logits[t, b, a]) / np.exp(logits[t, b]).sum()
        mu = np.exp(behaviour[t, b, a]) / np.exp(behaviour[t, b]).sum()
        np.testing.assert_allclose(ratio[t, b], pi / mu)


# --- returns --------------------------------------------------------------------------------------

# One episode goes on, one terminates after the first step, one is truncated there.
HAND_CUT = jnp.array([[False, True, True], [False, False, False]])
HAND_DISCOUNT = jnp.array([[0.5, 0.0, 0.5], [0.5, 0.5, 0.5]])


def columns(*rows: float) -> jax.Array:
    return jnp.repeat(jnp.array(rows)[:, None], 3, axis=1)


@with_and_without_jit
def test_retrace_by_hand(wrap: Callable) -> None:
    v_tp1, q_tp1, trace_tp1 = columns(4, 6), columns(3, 99), columns(0.5, 99)
    g = wrap(returns.retrace)(columns(1, 2), HAND_DISCOUNT, v_tp1, q_tp1, trace_tp1, HAND_CUT)
    # G_1 = 2 + 0.5 * 6; G_0 = 1 + 0.5 * (4 - 0.5 * 3 + 0.5 * 5)
    np.testing.assert_allclose(g, [[3.5, 1.0, 3.0], [5.0, 5.0, 5.0]])


@with_and_without_jit
def test_vtrace_by_hand(wrap: Callable) -> None:
    v_t, v_tp1, rho = columns(1, 2), columns(2, 3), columns(2, 0.5)
    arguments = (columns(1, 1), HAND_DISCOUNT, v_t, v_tp1, rho, HAND_CUT, 0.8)
    vs, advantage = wrap(returns.vtrace)(*arguments)
    # vs_1 = 2 + 0.5 * (1 + 1.5 - 2); vs_0 = 1 + 1 * (1 + 1 - 1) + 0.5 * 0.8 * (vs_1 - 2)
    np.testing.assert_allclose(vs, [[2.1, 1, 2], [2.25, 2.25, 2.25]], rtol=1e-6)
    # advantage_0 = 1 + 0.5 * (0.8 * 2.25 + 0.2 * 2) - 1
    np.testing.assert_allclose(advantage, [[1.1, 0, 1], [0.25, 0.25, 0.25]], rtol=1e-6)


@with_and_without_jit
def test_gae_by_hand(wrap: Callable) -> None:
    v_t, v_tp1 = columns(1, 2), columns(2, 3)
    advantage = wrap(returns.gae)(columns(1, 1), HAND_DISCOUNT, v_t, v_tp1, HAND_CUT, 0.8)
    # 1 + 1.5 - 2 at the end; 1 + 1 - 1 + 0.5 * 0.8 * 0.5 before it
    np.testing.assert_allclose(advantage, [[1.2, 0, 1], [0.5, 0.5, 0.5]], rtol=1e-6)


@with_and_without_jit
@pytest.mark.parametrize("seed", range(3))
def test_retrace_against_a_loop(wrap: Callable, seed: int, float64: None) -> None:
    x = Experience(seed)
    expected = np.zeros_like(x.reward)
    for b in range(BATCH):
        for t in reversed(range(STEPS)):
            following = x.value[t + 1, b]
            if t < STEPS - 1 and not x.cut[t, b]:
                following += x.trace[t + 1, b] * (expected[t + 1, b] - x.q[t + 1, b])
            expected[t, b] = x.reward[t, b] + x.discount[t, b] * following
    g = wrap(returns.retrace)(x.reward, x.discount, x.value[1:], x.q[1:], x.trace[1:], x.cut)
    np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-12)


@with_and_without_jit
@pytest.mark.parametrize("seed", range(3))
def test_vtrace_against_a_loop(wrap: Callable, seed: int, float64: None) -> None:
    x = Experience(seed)
    clipped = np.minimum(1, x.rho)
    error = clipped * (x.reward + x.discount * x.value[1:] - x.value[:-1])
    vs = x.value[:-1] + sum_of_errors(x, error, x.discount * LAMBDA * clipped)
    advantage = np.zeros_like(vs)
    for t, b in np.ndindex(STEPS, BATCH):
        following = x.value[t + 1, b]
        if t < STEPS - 1 and not x.cut[t, b]:
            following = LAMBDA * vs[t + 1, b] + (1 - LAMBDA) * following
        error = x.reward[t, b] + x.discount[t, b] * following - x.value[t, b]
        advantage[t, b] = min(1, x.rho[t, b]) * error
    actual = wrap(returns.vtrace)(
        x.reward, x.discount, x.value[:-1], x.value[1:], x.rho, x.cut, LAMBDA
    )
    np.testing.assert_allclose(actual[0], vs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(actual[1], advantage, rtol=1e-12, atol=1e-12)


@with_and_without_jit
@pytest.mark.parametrize("seed", range(3))
def test_gae_against_a_loop(wrap: Callable, seed: int, float64: None) -> None:
    x = Experience(seed)
    error = x.reward + x.discount * x.value[1:] - x.value[:-1]
    expected = sum_of_errors(x, error, x.discount * LAMBDA)
    actual = wrap(returns.gae)(x.reward, x.discount, x.value[:-1], x.value[1:], x.cut, LAMBDA)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@jax.jit
def all_estimates(
    reward: jax.Array,
    discount: jax.Array,
    cut: jax.Array,
    v_t: jax.Array,
    v_tp1: jax.Array,
    q_tp1: jax.Array,
    trace_tp1: jax.Array,
    rho: jax.Array,
    lambda_: float = LAMBDA,
) -> tuple[jax.Array, ...]:
    return (
        returns.retrace(reward, discount, v_tp1, q_tp1, trace_tp1, cut),
        *returns.vtrace(reward, discount, v_t, v_tp1, rho, cut, lambda_),
        returns.gae(reward, discount, v_t, v_tp1, cut, lambda_),
    )


@quick
@given(seed=st.integers(0, 10**6), end_rate=st.floats(0, 0.5))
def test_without_decay_and_on_policy_all_are_n_step_returns(seed: int, end_rate: float) -> None:
    x = Experience(seed, end_rate)
    with jax.enable_x64(True):
        ones, v_t, v_tp1 = np.ones_like(x.reward), x.value[:-1], x.value[1:]
        # Retrace equals them where an action is worth what its state is.
        g, vs, advantage, estimate = all_estimates(
            x.reward, x.discount, x.cut, v_t, v_tp1, v_tp1, ones, ones, lambda_=1.0
        )
    expected = n_step(x)
    for actual in (g, vs, np.asarray(advantage) + v_t, np.asarray(estimate) + v_t):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@quick
@given(seed=st.integers(0, 10**6), cut_at=st.integers(0, STEPS - 2), terminates=st.booleans())
def test_nothing_after_a_cut_reaches_before_it(seed: int, cut_at: int, terminates: bool) -> None:
    x, other = Experience(seed), Experience(seed + 1)
    x.cut[cut_at] = True
    x.discount[cut_at] *= not terminates
    after = slice(cut_at + 1, None)
    # What follows a truncation is bootstrapped from; what follows a termination is not.
    next_value = slice(cut_at if terminates else cut_at + 1, None)
    next_action = slice(cut_at, None)

    def mixed(name: str, steps: slice, source: slice = slice(STEPS)) -> np.ndarray:
        y = getattr(x, name)[source].copy()
        y[steps] = getattr(other, name)[source][steps]
        return y

    first, second = slice(0, STEPS), slice(1, STEPS + 1)
    reward, discount, cut = (mixed(name, after) for name in ("reward", "discount", "cut"))
    v_t, v_tp1 = mixed("value", after, first), mixed("value", next_value, second)
    q_tp1, trace_tp1 = mixed("q", next_action, second), mixed("trace", next_action, second)
    rho = mixed("rho", after)

    before = all_estimates(
        x.reward, x.discount, x.cut, x.value[:-1], x.value[1:], x.q[1:], x.trace[1:], x.rho
    )
    changed = all_estimates(reward, discount, cut, v_t, v_tp1, q_tp1, trace_tp1, rho)
    for y, z in zip(before, changed, strict=True):
        np.testing.assert_array_equal(y[: cut_at + 1], z[: cut_at + 1])
        assert not np.allclose(y[cut_at + 1 :], z[cut_at + 1 :])


# --- running moments ------------------------------------------------------------------------------


def test_moments_against_a_loop(float64: None) -> None:
    rng = np.random.default_rng(3)
    moments = returns.init_moments(jnp.float64)
    batches = rng.normal(2, 5, size=(4, 6, 2))
    first = second = 0.0
    for batch in batches:
        weight = rng.integers(2, size=batch.shape).astype(float)
        moments = returns.update_moments(moments, batch, weight)
        kept = batch[weight == 1]
        first = 0.99 * first + 0.01 * kept.mean()
        second = 0.99 * second + 0.01 * (kept**2).mean()
    mean, square = first / (1 - 0.99**4), second / (1 - 0.99**4)
    scale = np.sqrt(square - mean**2 + 1e-12) + 1e-6
    x = batches[-1]
    np.testing.assert_allclose(returns.normalise(moments, x, centre=True), (x - mean) / scale)
    np.testing.assert_allclose(returns.normalise(moments, x, centre=False), x / scale)


def test_moments_of_one_batch_are_the_batch_s_own(float64: None) -> None:
    x = jnp.array([1.0, 3.0])
    moments = returns.update_moments(returns.init_moments(jnp.float64), x, jnp.ones(2))
    np.testing.assert_allclose(returns.normalise(moments, x, centre=True), [-1, 1], rtol=2e-6)


def test_a_batch_without_weight_leaves_no_nan() -> None:
    moments = returns.update_moments(returns.init_moments(), jnp.ones(3), jnp.zeros(3))
    assert np.isfinite(returns.normalise(moments, jnp.ones(3), centre=True)).all()
    assert returns.weighted_mean(jnp.ones(3), jnp.zeros(3)) == 0


def test_weighted_mean_by_hand() -> None:
    x, weight = jnp.array([[1.0, 2.0], [4.0, 99.0]]), jnp.array([[1.0, 0.5], [0.5, 0.0]])
    assert returns.weighted_mean(x, weight) == 2
