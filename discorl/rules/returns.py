"""Values, returns and advantages: pure maths over arrays with time first, [T, ...].

Names carry the time index: `v_tp1` is the value at the observation that follows step t. Functions
of one trajectory's arrays broadcast over any trailing batch axes.

discorl has its own because traces are cut within a trajectory, where an episode ends, and because
values keep their digits in float32.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.networks.layers import take_action
from discorl.types import Array, Trajectory

# --- the value transform and its categorical form -------------------------------------------------

_LINEAR = 1e-3


def squash(x: Array) -> Array:
    """h(x) = sign(x)(sqrt(|x|+1) - 1) + 0.001 x (Pohlen et al. 2018, arXiv:1805.11593).

    The first term is written as x / (sqrt(|x|+1) + 1), which is equal but keeps every digit of a
    small x and has the right derivative at zero.
    """
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + _LINEAR * x


def unsquash(y: Array) -> Array:
    """Inverse of `squash`, in closed form.

    With w = sign(x)(sqrt(|x|+1) - 1) the equation is 0.001 |w| w + 1.002 w - y = 0, and x is
    w (|w| + 2). The root is written without subtracting two nearly equal numbers, which would lose
    half of the digits.
    """
    b = 1 + 2 * _LINEAR
    w = 2 * y / (b + jnp.sqrt(b * b + 4 * _LINEAR * jnp.abs(y)))
    return w * (jnp.abs(w) + 2)


def bins(count: int, dtype: jnp.dtype) -> Array:
    """Support of a categorical value: `count` consecutive integers around zero."""
    half = (count - 1) // 2
    return jnp.arange(-half, half + 1, dtype=dtype)


def categorical_value(logits: Array) -> Array:
    """Scalar value of logits over bins of squashed value: [..., K] -> [...].

    Bins of opposite sign are subtracted before they are summed. Their sums nearly cancel, which
    would leave a large float32 error in the value loss.
    """
    half = (logits.shape[-1] - 1) // 2
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    differences = weights[..., half + 1 :] - jnp.flip(weights[..., :half], axis=-1)
    # By default, accelerators multiply in bfloat16, which cannot represent bin 299.
    total = jnp.matmul(
        differences,
        jnp.arange(1, half + 1, dtype=logits.dtype),
        precision=jax.lax.Precision.HIGHEST,
    )
    return unsquash(total / jnp.sum(weights, axis=-1))


def two_hot(x: Array, count: int) -> Array:
    """Spreads a squashed value over its two neighbouring bins: [...] -> [..., K].

    Values beyond the outermost bins are clipped. The lower bin's share is divided by 1 + 1e-5, like
    in the published implementation; without this, parameters agree only to 1e-4.
    """
    half = (count - 1) // 2
    x = jnp.clip(x, -half, half)[..., None]
    upper = jnp.ceil(x)
    share = (upper - x) / (1 + 1e-5)
    support = bins(count, x.dtype)
    return jnp.where(support == upper, 1 - share, jnp.where(support == upper - 1, share, 0))


def categorical_kl(target_logits: Array, logits: Array) -> Array:
    """KL(softmax(target) || softmax(logits)) over the last axis."""
    log_p = jax.nn.log_softmax(target_logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(logits)), axis=-1)


def entropy(logits: Array) -> Array:
    """Entropy of softmax(logits) over the last axis."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


def importance_ratio(logits: Array, behaviour_logits: Array, action: Array) -> Array:
    """rho_t = pi(a_t) / mu(a_t): [T, B, A] twice and [T, B] -> [T, B]."""
    log_ratio = jax.nn.log_softmax(logits) - jax.nn.log_softmax(behaviour_logits)
    return jnp.exp(take_action(log_ratio, action))


# --- returns --------------------------------------------------------------------------------------


def _discounted_sum(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t y_{t+1}, from the end: [T, ...] twice -> [T, ...]."""

    def step(y: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        x_t, decay_t = inputs
        y = x_t + decay_t * y
        return y, y

    return jax.lax.scan(step, jnp.zeros_like(x[0]), (x, decay), reverse=True)[1]


def retrace(
    r_t: Array, discount_t: Array, v_tp1: Array, q_tp1: Array, trace_tp1: Array, cut_t: Array
) -> Array:
    """Retrace targets (Munos et al. 2016, arXiv:1606.02647).

    G_t = r_t + discount_t (v_{t+1} - c_{t+1} q_{t+1} + c_{t+1} G_{t+1}). The trace c is zero at the
    end of the trajectory and where `cut_t`, so G_t = r_t + discount_t v_{t+1} there.

    All arrays are [T, ...]. Discounts are zero at terminations. The last values of the next actions
    and the last trace are never used.
    """
    last = jnp.arange(r_t.shape[0]).reshape((-1,) + (1,) * (r_t.ndim - 1)) == r_t.shape[0] - 1
    trace_tp1 = jnp.where(last | cut_t, 0, trace_tp1)
    return _discounted_sum(r_t + discount_t * (v_tp1 - trace_tp1 * q_tp1), discount_t * trace_tp1)


def retrace_along(
    trajectory: Trajectory, discount: Array | float, v: Array, q_t: Array, trace_t: Array
) -> Array:
    """Retrace targets along trajectories, [T, B].

    `v` are state values, [T+1, B]. `q_t` and `trace_t` are values and trace coefficients of the
    actions taken, [T, B].
    """
    return retrace(
        trajectory.reward.astype(v.dtype),
        discount * (1 - trajectory.terminated.astype(v.dtype)),
        v[1:],
        jnp.roll(q_t, -1, axis=0),
        jnp.roll(trace_t, -1, axis=0),
        trajectory.cut(),
    )


def vtrace(
    r_t: Array,
    discount_t: Array,
    v_t: Array,
    v_tp1: Array,
    rho_t: Array,
    cut_t: Array,
    lambda_: float,
) -> tuple[Array, Array]:
    """V-trace with ratios clipped at one (Espeholt et al. 2018, arXiv:1802.01561).

    All arrays are [T, ...]. Discounts are zero at terminations. Returns value targets vs_t and
    advantages min(1, rho_t)(r_t + discount_t [lambda vs_{t+1} + (1-lambda) v_{t+1}] - v_t), with
    the next value alone where the trajectory ends or is cut.
    """
    clipped_t = jnp.minimum(1, rho_t)
    decay_t = jnp.where(cut_t, 0, discount_t * lambda_ * clipped_t)
    errors = _discounted_sum(clipped_t * (r_t + discount_t * v_tp1 - v_t), decay_t)
    vs_t = v_t + errors
    vs_tp1 = jnp.concatenate([vs_t[1:], v_tp1[-1:]])
    vs_tp1 = jnp.where(cut_t, v_tp1, vs_tp1)
    bootstrap = lambda_ * vs_tp1 + (1 - lambda_) * v_tp1
    return vs_t, clipped_t * (r_t + discount_t * bootstrap - v_t)


def gae(
    r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array, lambda_: float
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438): [T, ...]."""
    delta_t = r_t + discount_t * v_tp1 - v_t
    return _discounted_sum(delta_t, jnp.where(cut_t, 0, discount_t * lambda_))


# --- running moments ------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
    """Exponential moving averages of a signal and of its square; scalars."""

    moment1: Array
    moment2: Array
    decay_product: Array  # weight of the initial zeros in the averages, for debiasing


DECAY = 0.99


def init_moments(dtype: jnp.dtype = jnp.float32) -> Moments:
    """Moments before any value."""
    return Moments(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.ones((), dtype))


def weighted_mean(x: Array, weight: Array) -> Array:
    """Weighted mean over all steps; zero, not NaN, if all weights are zero."""
    return jnp.sum(x * weight) / jnp.maximum(jnp.sum(weight), 1e-8)


def update_moments(moments: Moments, x: Array, weight: Array) -> Moments:
    """Updates the moments with the weighted mean of a batch of values."""
    return Moments(
        DECAY * moments.moment1 + (1 - DECAY) * weighted_mean(x, weight),
        DECAY * moments.moment2 + (1 - DECAY) * weighted_mean(x * x, weight),
        DECAY * moments.decay_product,
    )


def normalise(moments: Moments, x: Array, *, centre: bool) -> Array:
    """Divides by the running standard deviation, after removing the mean if `centre`."""
    scale = 1 / (1 - moments.decay_product)
    mean = moments.moment1 * scale
    variance = jnp.maximum(0, moments.moment2 * scale - mean * mean)
    return (x - mean if centre else x) / (jnp.sqrt(variance + 1e-12) + 1e-6)
