"""Recomputing golden cases: a rule's calls, an agent's updates, a meta-gradient."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent.config import OptimiserConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.optimiser import make_optimiser
from discorl.discovery.meta_gradient import MetaGradient
from discorl.discovery.meta_value import MetaValue
from discorl.networks import standard
from discorl.rules import Disco, Sizes, returns
from discorl.rules.base import summaries
from discorl.rules.files import weights
from discorl.types import Array, Params, PyTree, Trajectory, UserError
from discorl.verification.cases import Case, cast, flatten, trajectory_of

DEFAULT_LEARNING_RATE = 1e-3
META_LEARNING_RATE = 5e-4  # of the agent in a meta-gradient case
ANY_LIFETIME = 1  # updates; the Disco rules have no schedule


# Programs of a case run a few times only, and most of the time would go into compiling them. The
# rule is compiled as it is in training; updates and meta-gradients, which take longest, are not
# optimised.
_QUICK_TO_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


class Errors:
    """Collects the largest relative error of each quantity, and missing arrays."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        self.missing: dict[str, list[str]] = {}

    def add(self, case: Case, prefix: str, computed: PyTree, label: str = "{quantity}") -> None:
        """Compares everything below a prefix of a case.

        `computed` has nested dicts with all arrays that a complete case holds below the prefix.
        `label` names the quantity in the results; the arrays of `params/...` are one.
        """
        expected, flat = case.flat(prefix), flatten(computed)
        for name in expected:
            if name not in flat:
                raise UserError(f"{case.path}: unknown quantity '{prefix}{name}'")
        for name, value in flat.items():
            quantity = label.format(quantity=name.partition("/")[0], name=name)
            if name in expected:
                self._compare(quantity, np.asarray(value, np.float64), expected[name])
            elif f"{prefix}{name}" not in case.left_out:
                self.missing.setdefault(quantity, []).append(f"{prefix}{name}")

    def _compare(self, quantity: str, computed: np.ndarray, expected: np.ndarray) -> None:
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


# --- calls of the rule ----------------------------------------------------------------------------


def check_rule(case: Case, eta: Params, errors: Errors) -> None:
    """Recomputes successive calls of the rule."""
    state = None
    for prefix in case.numbered("call"):
        given = case.inputs(f"{prefix}in/")
        rule = Disco(sizes=Sizes.of(eta), num_bins=given["agent"]["q"].shape[-1])
        state = (
            cast(rule.init_state(jnp.int32(ANY_LIFETIME)), case.dtype) if state is None else state
        )
        state, computed = jax.jit(_call, static_argnums=0)(rule, eta, state, given)
        errors.add(case, f"{prefix}out/", computed)


def _call(rule: Disco, eta: Params, state: PyTree, given: dict) -> tuple[PyTree, dict[str, Any]]:
    """Everything that a golden file records about one call of the rule."""
    trajectory = trajectory_of(given)

    online, target = (summaries(rule, eta, given[network]) for network in ("agent", "target"))
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
    """The learner of an agent with the standard network, sized by its parameters."""
    q_head = params["action_model"]["q"]
    rule = Disco(sizes=Sizes.of(eta), num_bins=q_head[str(len(q_head) - 1)]["b"].shape[0])
    num_actions = trajectory.behaviour_logits.shape[-1]
    observation = _shapes(trajectory.observation)
    network = standard(rule.outputs(num_actions), observation, torso="mlp")
    optimizer = make_optimiser(OptimiserConfig(learning_rate=learning_rate))
    return Learner(rule, network, optimizer, num_actions)


def _shapes(observation: PyTree) -> PyTree:
    """Shapes of one observation, from those of a trajectory."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), observation)


def fresh_state(learner: Learner, params: Params, dtype: str) -> LearnerState:
    """A new agent with the given parameters."""
    return LearnerState(
        params=params,
        target_params=params,
        optimizer=learner.optimizer.init(params),
        rule=cast(learner.rule.init_state(jnp.int32(ANY_LIFETIME)), dtype),
        key=jax.random.key(0),  # for shuffles, of which this rule makes none
        updates=jnp.zeros((), jnp.int32),
    )


def check_learner(case: Case, eta: Params, errors: Errors) -> None:
    """Recomputes successive updates of an agent."""
    params = case.inputs("init/params/")
    first = trajectory_of(case.inputs("step0/in/"))
    learner = agent_of(eta, params, first, case.scalar("lr", DEFAULT_LEARNING_RATE))
    state = fresh_state(learner, params, case.dtype)
    update = jax.jit(learner.update_in_detail, compiler_options=_QUICK_TO_COMPILE)
    for prefix in case.numbered("step"):
        trajectory = trajectory_of(case.inputs(f"{prefix}in/"))
        # The losses by part were recorded without the mask; only their total knows it.
        everything = jax.tree.map(np.ones_like, trajectory.mask)
        _, parts, _ = update(state, eta, dataclasses.replace(trajectory, mask=everything))
        state, metrics, details = update(state, eta, trajectory)
        targets = details.targets
        computed = {
            "total_loss": metrics["losses/total"],
            "pi_loss": parts["losses/pi"],
            "aux_kl_loss": parts["losses/aux_pi"],
            "q_loss": parts["losses/q"] / Disco.q_cost,
            "global_gradient_norm": metrics["optimizer/gradient_norm"],
            "global_update_norm": metrics["optimizer/update_norm"],
            "entropy": parts["policy/entropy"],
            "pi_hat_entropy": metrics["rule/pi_hat_entropy"],
            "target": {"pi": targets.pi, "y": targets.y, "z": targets.z},
            "params": state.params,
        }
        errors.add(case, f"{prefix}out/", computed)
    final = {"target_params": state.target_params, "meta_rnn": vars(state.rule.meta_rnn)}
    errors.add(case, "final/", final, "final {quantity}")


# --- a meta-gradient ------------------------------------------------------------------------------


def check_meta_gradient(case: Case, eta: Params, errors: Errors) -> None:
    """Recomputes the gradient of the meta-loss through several updates."""
    batches = [trajectory_of(case.inputs(prefix)) for prefix in case.numbered("train")]
    validation = trajectory_of(case.inputs("valid/"))
    params, value_params = case.inputs("init/params/"), case.inputs("init/value_params/")
    learner = agent_of(eta, params, batches[0], case.scalar("lr", META_LEARNING_RATE))
    # The settings of the reduced loop that these cases were recorded from.
    meta_value = MetaValue(
        _shapes(batches[0].observation), discount=0.99, lambda_=0.96, learning_rate=1e-3
    )
    differentiate = jax.jit(
        MetaGradient(learner, meta_value).__call__, compiler_options=_QUICK_TO_COMPILE
    )
    gradient, state, value_state, metrics = differentiate(
        eta,
        fresh_state(learner, params, case.dtype),
        meta_value.init_from(value_params),
        jax.tree.map(lambda *leaves: np.stack(leaves), *batches),
        validation,
    )
    errors.add(case, "meta_grads/", weights.flatten(gradient), "gradient of {name}")
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
    errors.add(case, "meta_log/", log)
    errors.add(case, "final/", final)
