"""Recomputes golden cases, so that a user can prove what their machine and versions compute.

A directory holds npz files of three kinds, told apart by the names of their arrays: calls of the
rule on given outputs (`call0/...`), updates of an agent (`step0/...`) and a meta-gradient
(`train0/...`). The rule is in `meta_network.npz` beside them, or else named by the caller.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import compilation, npz, returns, rules
from discorl.discovery.meta_gradient import MetaGradient
from discorl.discovery.meta_value import MetaValue
from discorl.learning import Learner, LearnerState
from discorl.networks import standard
from discorl.optimisation import Optimisation
from discorl.rules import Disco, Sizes, weights
from discorl.types import Array, Params, PyTree, Trajectory, UserError

RULE_FILE = "meta_network.npz"
DEFAULT_RULE = "disco103"
DEFAULT_LEARNING_RATE = 1e-3
META_LEARNING_RATE = 5e-4  # of the agent in a meta-gradient case

# Largest error accepted, relative to the largest value of an array; None: shown, not judged. One
# step of Adam turns the rounding noise of a nearly zero gradient into a full step, so in float32
# only the rule itself can be judged.
TOLERANCE: dict[tuple[str, str], float | None] = {
    ("rule", "float64"): 1e-5,
    ("rule", "float32"): 1e-4,
    ("learner", "float64"): 1e-5,
    ("learner", "float32"): None,
    ("meta-gradient", "float64"): 1e-3,
    ("meta-gradient", "float32"): None,
}


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest error of one quantity in one file."""

    file: str
    dtype: str
    quantity: str
    error: float
    tolerance: float | None  # None: not judged

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; NaN never is."""
        if self.tolerance is None:
            return not math.isnan(self.error)
        return self.error <= self.tolerance


class _Errors:
    """Collects the largest relative error of each quantity."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    def add(self, quantity: str, computed: PyTree, expected: PyTree) -> None:
        """Compares arrays or equally nested dicts of arrays."""
        if isinstance(expected, Mapping):
            for name, value in expected.items():
                self.add(quantity, computed[name], value)
            return
        computed = np.asarray(computed, np.float64)
        if computed.shape != expected.shape:
            raise UserError(
                f"{quantity}: the file holds shape {expected.shape}, but {computed.shape} follows "
                "from its inputs"
            )
        # An array of zeros has no scale of its own: its error counts as it is.
        scale = np.max(np.abs(expected), initial=0) or 1.0
        error = float(np.max(np.abs(computed - expected), initial=0) / scale)
        # NaN must win over any number, which max() does not see to.
        before = self.largest.get(quantity, 0.0)
        self.largest[quantity] = error if error != error or error > before else before


class _Case:
    """The arrays of a golden file, as nested dicts in the dtype under test."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._arrays = npz.read(path).arrays
        self.path = path
        self.dtype = dtype

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._arrays)

    def scalar(self, name: str, default: float) -> float:
        return float(self._arrays.get(name, default))

    def expected(self, prefix: str) -> dict[str, Any]:
        """Everything below a prefix, as stored."""
        tree: dict[str, Any] = {}
        for name, array in self.flat(prefix).items():
            node = tree
            *folders, last = name.split("/")
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
        if not tree:
            raise UserError(f"{self.path}: holds no array under '{prefix}'")
        return tree

    def flat(self, prefix: str) -> dict[str, np.ndarray]:
        """Everything below a prefix, by the rest of its name."""
        named = self._arrays.items()
        return {name.removeprefix(prefix): x for name, x in named if name.startswith(prefix)}

    def inputs(self, prefix: str) -> dict[str, Any]:
        """Everything below a prefix, in the dtype under test."""
        return cast(self.expected(prefix), self.dtype)

    def numbered(self, prefix: str) -> Iterator[str]:
        """`prefix0/`, `prefix1/`, ... as far as they go."""
        i = 0
        while self.has(f"{prefix}{i}/"):
            yield f"{prefix}{i}/"
            i += 1


def cast(tree: PyTree, dtype: str) -> PyTree:
    """Puts a tree on the device with its floating-point arrays in the given dtype."""

    def leaf(x: Any) -> Array:
        x = jnp.asarray(x)
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(leaf, tree)


def trajectory_of(arrays: Mapping[str, Any]) -> Trajectory:
    """A golden trajectory; actions and behaviour logits come with an unused last moment."""
    steps = arrays["rewards"].shape[0]
    return Trajectory(
        observation=arrays.get("observations"),
        action=arrays["actions"][:steps],
        reward=arrays["rewards"],
        terminated=arrays["is_terminal"],
        behaviour_logits=arrays["behaviour_logits"][:steps],
        mask=arrays.get("mask"),
    )


# --- calls of the rule ----------------------------------------------------------------------------


def _check_rule(case: _Case, eta: Params, errors: _Errors) -> None:
    state = None
    for prefix in case.numbered("call"):
        given, expected = case.inputs(f"{prefix}in/"), case.expected(f"{prefix}out/")
        rule = Disco(sizes=Sizes.of(eta), num_bins=given["agent"]["q"].shape[-1])
        state = cast(rule.init_state(), case.dtype) if state is None else state
        state, computed = jax.jit(_call, static_argnums=0)(rule, eta, state, given)
        for name, value in expected.items():
            if name not in computed:
                raise UserError(f"{case.path}: unknown quantity '{prefix}out/{name}'")
            errors.add(name, computed[name], value)


def _call(rule: Disco, eta: Params, state: PyTree, given: dict) -> tuple[PyTree, dict[str, Any]]:
    """All that a golden file records of one call of the rule."""
    trajectory = trajectory_of(given)

    def summaries(outputs: dict[str, Array]) -> dict[str, Array]:
        named = {name: rule.summarise(eta, name, output) for name, output in outputs.items()}
        return {name: summary for name, summary in named.items() if summary is not None}

    online, target = summaries(given["agent"]), summaries(given["target"])
    values, _ = rule.values(state, trajectory, online, target)
    targets, state, _ = rule.targets(eta, state, trajectory, online, target)

    def loss(outputs: dict[str, Array]) -> tuple[Array, tuple[Array, Array]]:
        per_action = rule.outputs(trajectory.behaviour_logits.shape[-1]).action
        taken = {n: returns.take_action(outputs[n][:-1], trajectory.action) for n in per_action}
        terms = rule.loss(outputs | taken, targets, trajectory)
        value_loss = terms.pop("q")
        kl_loss = jnp.asarray(sum(terms.values()))
        return jnp.sum(kl_loss + value_loss), (kl_loss, value_loss)

    gradients, (kl_loss, value_loss) = jax.grad(loss, has_aux=True)(given["agent"])
    return state, {
        "pi": targets.pi,
        "y": targets.y,
        "z": targets.z,
        "meta_input_emb": targets.embedding,
        "q_value": online["q"],
        "q_target": values.q_target,
        "adv": values.adv,
        "normalized_adv": values.normalised_adv,
        "qv_adv": values.qv_adv,
        "normalized_qv_adv": values.normalised_qv_adv,
        "q_td": values.q_td,
        "normalized_q_td": values.normalised_q_td,
        "meta_rnn": vars(state.meta_rnn),
        "adv_ema": vars(state.adv_moments),
        "td_ema": vars(state.td_moments),
        "loss_per_step": kl_loss,
        "value_loss_per_step": value_loss,
        "grad": gradients,
    }


# --- updates of an agent --------------------------------------------------------------------------


def agent_of(eta: Params, params: Params, trajectory: Trajectory, learning_rate: float) -> Learner:
    """The learner of an agent with the standard network, its sizes read from its parameters."""
    q_head = params["action_model"]["q"]
    rule = Disco(sizes=Sizes.of(eta), num_bins=q_head[str(len(q_head) - 1)]["b"].shape[0])
    num_actions = trajectory.behaviour_logits.shape[-1]
    observation = _shapes(trajectory.observation)
    network = standard(rule.outputs(num_actions), observation, torso="mlp")
    optimizer = Optimisation(learning_rate=learning_rate).optimizer()
    return Learner(rule, network, optimizer, num_actions)


def _shapes(observation: PyTree) -> PyTree:
    """Of one observation, from those of a trajectory."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), observation)


def fresh_state(learner: Learner, params: Params, dtype: str) -> LearnerState:
    """An agent at the beginning of its life, with the given parameters."""
    return LearnerState(
        params=params,
        target_params=params,
        optimizer=learner.optimizer.init(params),
        rule=cast(learner.rule.init_state(), dtype),
        key=jax.random.key(0),  # for shuffles, of which this rule makes none
        updates=jnp.zeros((), jnp.int32),
    )


def _check_learner(case: _Case, eta: Params, errors: _Errors) -> None:
    params = case.inputs("init/params/")
    first = trajectory_of(case.inputs("step0/in/"))
    learner = agent_of(eta, params, first, case.scalar("lr", DEFAULT_LEARNING_RATE))
    state = fresh_state(learner, params, case.dtype)
    update = jax.jit(learner.update_in_detail)
    for prefix in case.numbered("step"):
        trajectory = trajectory_of(case.inputs(f"{prefix}in/"))
        expected = case.expected(f"{prefix}out/")
        # The losses by part were recorded without the mask; only their total knows it.
        _, parts, _ = update(state, eta, dataclasses.replace(trajectory, mask=None))
        state, metrics, details = update(state, eta, trajectory)
        targets = details.targets
        computed = {
            "total_loss": metrics["loss"],
            "pi_loss": parts["loss/pi"],
            "aux_kl_loss": parts["loss/aux_pi"],
            "q_loss": parts["loss/q"] / Disco.q_cost,
            "global_gradient_norm": metrics["gradient_norm"],
            "global_update_norm": metrics["update_norm"],
            "entropy": parts["entropy"],
            "pi_hat_entropy": metrics["pi_hat_entropy"],
            "target": {"pi": targets.pi, "y": targets.y, "z": targets.z},
            "params": state.params,
        }
        for name, value in expected.items():
            if name not in computed:
                raise UserError(f"{case.path}: unknown quantity '{prefix}out/{name}'")
            errors.add(name, computed[name], value)
    if case.has("final/"):
        final = {"target_params": state.target_params, "meta_rnn": vars(state.rule.meta_rnn)}
        for name, value in case.expected("final/").items():
            errors.add(f"final {name}", final[name], value)


# --- a meta-gradient ------------------------------------------------------------------------------


def _check_meta_gradient(case: _Case, eta: Params, errors: _Errors) -> None:
    batches = [trajectory_of(case.inputs(prefix)) for prefix in case.numbered("train")]
    validation = trajectory_of(case.inputs("valid/"))
    params, value_params = case.inputs("init/params/"), case.inputs("init/value_params/")
    learner = agent_of(eta, params, batches[0], case.scalar("lr", META_LEARNING_RATE))
    # The settings of the reduced loop that these cases were recorded from.
    meta_value = MetaValue(
        _shapes(batches[0].observation), discount=0.99, lambda_=0.96, learning_rate=1e-3
    )
    gradient, state, value_state, metrics = jax.jit(MetaGradient(learner, meta_value).__call__)(
        eta,
        fresh_state(learner, params, case.dtype),
        meta_value.init_from(value_params),
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches),
        validation,
    )
    computed = weights.flatten(jax.tree.map(np.asarray, gradient))
    for name, value in weights.flatten(weights.unflatten(case.flat("meta_grads/"))).items():
        errors.add(f"gradient of {name}", computed[name], value)
    log = {
        "adv": metrics["meta/adv"],
        "entropy": metrics["meta/entropy"],
        "meta_loss": metrics["meta/loss"],
        "normalized_adv": metrics["meta/normalised_adv"],
        "pg_loss": metrics["meta/policy_gradient"],
        "reg_loss": metrics["meta/regularisation"],
        "val_importance_weight": metrics["meta/importance_ratio"],
        "value": metrics["meta/value"],
    }
    final = {"params": state.params, "value_params": value_state.params}
    for prefix, tree in (("meta_log/", log), ("final/", final)):
        for name, value in case.expected(prefix).items():
            errors.add(name, tree[name], value)


# --- all of a directory ---------------------------------------------------------------------------

CHECKS: dict[str, tuple[str, Callable[[_Case, Params, _Errors], None]]] = {
    "call0/": ("rule", _check_rule),
    "step0/": ("learner", _check_learner),
    "train0/": ("meta-gradient", _check_meta_gradient),
}


def verify(directory: str | Path, rule: str | None = None) -> list[Check]:
    """Recomputes every golden case in a directory and those below it.

    Args:
        directory: where the cases are.
        rule: the rule of cases that have none beside them, a name or a file; disco103 by default.

    Returns:
        one check for each quantity, in float64 and then in float32.

    Raises:
        UserError: there are no cases, or one of them is not what it should be.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such directory")
    files = sorted(p for p in directory.rglob("*.npz") if p.name != RULE_FILE)
    if not files:
        raise UserError(f"{directory}: holds no golden cases (npz files)")
    compilation.enable_cache()
    checks = []
    for path in files:
        beside = path.parent / RULE_FILE
        eta = weights.load(beside).eta if beside.is_file() else _told(rule, path)
        for dtype in ("float64", "float32"):
            with jax.enable_x64(dtype == "float64"):
                checks += _check_file(path, str(path.relative_to(directory)), eta, dtype)
    return checks


def _told(rule: str | None, path: Path) -> Params:
    eta = rules.load(rule or DEFAULT_RULE)[1]
    if not eta:
        raise UserError(f"{path}: needs a discovered rule, and '{rule}' is a hand-made one")
    return eta


def _check_file(path: Path, name: str, eta: Params, dtype: str) -> list[Check]:
    case = _Case(path, dtype)
    for prefix, (kind, check) in CHECKS.items():
        if case.has(prefix):
            errors = _Errors()
            try:
                check(case, cast(eta, dtype), errors)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise UserError(f"{path}: not a complete case: {error!r}") from error
            tolerance = TOLERANCE[kind, dtype]
            return [Check(name, dtype, q, e, tolerance) for q, e in errors.largest.items()]
    starts = ", ".join(CHECKS)
    raise UserError(f"{path}: not a golden case; its arrays start with none of {starts}")
