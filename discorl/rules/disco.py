"""The Disco rule: targets from a meta-network (Oh et al., Nature 648, 2025)."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from discorl.rules import masks, meta_network, returns, searched
from discorl.rules.base import Rule
from discorl.rules.files import weights
from discorl.rules.meta_network import MetaState, Sizes
from discorl.rules.regularisers import Regularisers
from discorl.rules.returns import Moments
from discorl.runs import npz
from discorl.types import (
    Array,
    Key,
    Metrics,
    Outputs,
    OutputSpec,
    Params,
    Trajectory,
    UserError,
    specs,
)
from discorl.types.validation import bounded

MOST_BINS = 100_001
PUBLISHED_BINS = 601  # of files without that setting
# Likewise. Disco103 learns poorly from returns that span only a few bins. docs/records/baselines.md
# has the measurements behind this span.
PUBLISHED_RETURN_SPAN = 30.0

# The paper's ablations: the inputs of the meta-network and the terms of the loss that each removes.
_PREDICTIONS = ("y", "y_target", "z", "z_target")
_VALUES = ("v", "q", "adv", "normalised_adv", "qv_adv", "normalised_qv_adv")
ABLATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "yz": (_PREDICTIONS, ("y", "z")),  # the predictions without a predefined meaning
    "q": (_VALUES, ("q",)),  # the action value, and with it advantages
    "aux_pi": ((), ("aux_pi",)),  # the prediction of the next policy, p in the paper
    "bootstrapping": (_PREDICTIONS, ()),  # y and z are learned, but no target is made from them
    "meta_rnn": ((), ()),  # the memory over a lifetime: its state stays zero
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DiscoState:
    """The rule's state over an agent's life."""

    meta_rnn: MetaState
    adv_moments: Moments
    td_moments: Moments


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Values:
    """Values and advantages; the paper marks those of the target network with a prime."""

    v: Array  # [T+1, B]
    q: Array  # [T+1, B, A], of the target network
    q_target: Array  # [T, B], the Retrace return
    adv: Array  # [T, B]
    normalised_adv: Array  # [T, B]
    qv_adv: Array  # [T+1, B, A]
    normalised_qv_adv: Array  # [T+1, B, A]
    q_td: Array  # [T, B]
    normalised_q_td: Array  # [T, B]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Targets:
    """Where the agent's outputs should move."""

    pi: Array  # [T, B, A] logits
    y: Array  # [T, B, P] logits
    z: Array  # [T, B, P] logits
    q: Array  # [T, B] values
    embedding: Array  # [T, B, 1], output of the meta-network that only its meta-RNN reads


@dataclasses.dataclass(frozen=True)
class Disco(Rule):
    """The discovered rule: a meta-network computes targets for the policy and the predictions.

    `without="q+aux_pi"` ablates parts of it, as in the paper: any of yz, q, aux_pi, bootstrapping
    and meta_rnn. The agent's outputs stay the same.
    """

    name: ClassVar[str] = "disco"
    # Found with Disco103; see docs/records.
    recipes: ClassVar[searched.Recipes] = searched.DISCO
    target_decay: ClassVar[float | None] = 0.9

    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    num_bins: int = bounded(601, least=3, most=MOST_BINS)  # K, of the categorical action value
    # s: bins lie s apart along s h(x / s), so values of rewards r in bins s apart are s times those
    # of rewards r / s in bins one apart. Small rewards need fine bins.
    bin_spacing: float = bounded(1.0, above=0)
    # Optimal minus random return that the rule learns best from; 0: any.
    return_span: float = bounded(0.0, least=0)
    lambda_: float = bounded(0.95, least=0, most=1)
    pi_cost: float = 1.0
    y_cost: float = 1.0
    z_cost: float = 1.0
    aux_pi_cost: float = 1.0
    q_cost: float = 0.2
    without: str = "none"  # ablated parts: some of ABLATIONS, joined by +
    regularisers: Regularisers = dataclasses.field(default_factory=Regularisers)

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = self._fields()
        for part in sorted(self.ablated - set(ABLATIONS)):
            raise UserError(
                f"{self.name}: without={self.without}: no part is called {part!r}; "
                f"{specs.nearest(part, [*ABLATIONS, 'none'])}; several are joined by +"
            )
        # The middle bin is zero.
        fields.require(self.num_bins % 2 == 1, "num_bins", "an odd number")

    @property
    def ablated(self) -> frozenset[str]:
        """The names of the ablated parts."""
        return frozenset(self.without.split("+")) - {"none"}

    def outputs(self, num_actions: int) -> OutputSpec:
        """Policy, predictions y and z, action value q and next policy aux_pi."""
        return OutputSpec(
            num_actions,
            state={"logits": (num_actions,), "y": (self.sizes.prediction,)},
            action={
                "z": (self.sizes.prediction,),
                "q": (self.num_bins,),
                "aux_pi": (num_actions,),
            },
        )

    @property
    def reward_unit(self) -> float:
        """See `Rule.reward_unit`."""
        return self.bin_spacing

    def reward_scale(self, span: Callable[[], float | None]) -> float:
        """Scales returns up to the rule's `return_span`; never scales rewards down."""
        found = span() if self.return_span else None
        return max(1.0, self.return_span / found) if found and found > 0 else 1.0

    def init_params(self, key: Key) -> Params:
        eta = meta_network.init(key, self.sizes)
        if "meta_rnn" in self.ablated:
            # The gate reduces to its bias, which at zero would switch all targets off.
            gate = eta["gate"]
            eta = eta | {"gate": gate | {"b": jnp.ones_like(gate["b"])}}
        return eta

    def init_state(self, lifetime: Array) -> DiscoState:
        moments = returns.init_moments()
        return DiscoState(meta_network.init_state(self.sizes), moments, moments)

    def summarise(self, eta: Params, name: str, output: Array) -> Array | None:
        """Embeds predictions by both halves of the meta-network; reduces q to a scalar."""
        if name in ("y", "z"):
            return meta_network.embed([eta[f"{name}_net"], eta["meta_rnn"][f"{name}_net"]], output)
        if name == "q":
            return self.bin_spacing * returns.categorical_value(output)
        return output if name == "logits" else None

    def values(
        self, state: DiscoState, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[Values, DiscoState]:
        """Retrace returns and advantages, and the state with updated moments."""
        action = trajectory.action
        pi = jax.nn.softmax(online["logits"])
        v = jnp.sum(pi * online["q"], axis=-1)
        target_v = jnp.sum(pi * target["q"], axis=-1)
        rho = returns.importance_ratio(online["logits"][:-1], trajectory.behaviour_logits, action)
        target_q_a = returns.take_action(target["q"][:-1], action)
        trace = self.lambda_ * jnp.minimum(1, rho)
        q_target = returns.retrace_along(trajectory, self.discount, target_v, target_q_a, trace)
        adv = q_target - target_v[:-1]
        qv_adv = target["q"] - target_v[..., None]
        q_td = q_target - returns.take_action(online["q"][:-1], action)
        weight = (~trajectory.fillers()).astype(v.dtype)
        adv_moments = returns.update_moments(state.adv_moments, adv, weight)
        td_moments = returns.update_moments(state.td_moments, q_td, weight)
        values = Values(
            v=v,
            q=target["q"],
            q_target=q_target,
            adv=adv,
            normalised_adv=returns.normalise(adv_moments, adv, centre=True),
            qv_adv=qv_adv,
            normalised_qv_adv=returns.normalise(adv_moments, qv_adv, centre=True),
            q_td=q_td,
            normalised_q_td=returns.normalise(td_moments, q_td, centre=False),
        )
        state = DiscoState(state.meta_rnn, adv_moments, td_moments)
        return jax.lax.stop_gradient((values, state))

    def targets(
        self,
        eta: Params,
        state: DiscoState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[Targets, DiscoState, Metrics]:
        values, new_state = self.values(state, trajectory, online, target)
        inputs = self.inputs(values, trajectory, online, target)
        hats, meta_rnn = self.ask(eta, state.meta_rnn, inputs)
        pi = masks.mask_logits(hats["pi"], trajectory.legal(slice(-1)))
        targets = Targets(pi, hats["y"], hats["z"], values.q_target, hats["embedding"])
        metrics = {
            "value": returns.weighted_mean(values.v[:-1], inputs.weight),
            "q_td": returns.weighted_mean(jnp.abs(values.q_td), inputs.weight),
            "pi_hat_entropy": returns.weighted_mean(returns.entropy(targets.pi), inputs.weight),
        }
        return targets, dataclasses.replace(new_state, meta_rnn=meta_rnn), metrics

    def inputs(
        self, values: Values, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> meta_network.Inputs:
        """Inputs of the meta-network, before ablation."""
        return meta_network.Inputs(
            action=trajectory.action,
            reward=trajectory.reward.astype(values.v.dtype),
            terminated=trajectory.terminated,
            cut=trajectory.cut(),
            weight=(~trajectory.fillers()).astype(values.v.dtype),
            pi=jax.nn.softmax(online["logits"]),
            mu=jax.nn.softmax(trajectory.behaviour_logits),
            pi_target=jax.nn.softmax(target["logits"][:-1]),
            v=values.v,
            q=values.q[:-1],
            adv=values.adv,
            normalised_adv=values.normalised_adv,
            qv_adv=values.qv_adv[:-1],
            normalised_qv_adv=values.normalised_qv_adv[:-1],
            y=online["y"],
            y_target=target["y"],
            z=online["z"],
            z_target=target["z"],
            legal=trajectory.legal(),
        )

    def ask(
        self, eta: Params, state: MetaState, inputs: meta_network.Inputs
    ) -> tuple[dict[str, Array], MetaState]:
        """Logits of the targets and the next state, from the ablated meta-network."""
        ablated = {name for part in self.ablated for name in ABLATIONS[part][0]}
        zeros = {name: jnp.zeros_like(getattr(inputs, name)) for name in sorted(ablated)}
        inputs = dataclasses.replace(inputs, **zeros)
        if "meta_rnn" in self.ablated:
            state = jax.tree.map(jnp.zeros_like, state)
            return meta_network.apply(eta, state, inputs)[0], state
        return meta_network.apply(eta, state, inputs, reads_y_hat="yz" not in self.ablated)

    def loss(self, outputs: Outputs, targets: Targets, trajectory: Trajectory) -> dict[str, Array]:
        """KL to the targets, to the next policy, and cross-entropy of the action value."""
        kl = returns.categorical_kl
        next_policy = jax.lax.stop_gradient(outputs["logits"][1:])
        aux_pi = masks.mask_logits(outputs["aux_pi"], trajectory.legal(slice(1, None)))
        continues = 1 - trajectory.terminated.astype(next_policy.dtype)
        value = returns.squash(jax.lax.stop_gradient(targets.q) / self.bin_spacing)
        q_target = returns.two_hot(value, self.num_bins)
        cross_entropy = -jnp.sum(q_target * jax.nn.log_softmax(outputs["q"]), axis=-1)
        terms = {
            "pi": self.pi_cost * kl(targets.pi, outputs["logits"][:-1]),
            "y": self.y_cost * kl(targets.y, outputs["y"][:-1]),
            "z": self.z_cost * kl(targets.z, outputs["z"]),
            "aux_pi": self.aux_pi_cost * kl(next_policy, aux_pi) * continues,
            "q": self.q_cost * cross_entropy,
        }
        ablated = {name for part in self.ablated for name in ABLATIONS[part][1]}
        return {name: term for name, term in terms.items() if name not in ablated}

    def penalty(
        self, targets: Targets, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> Array:
        """Keeps targets centred and pi_hat near the target network's policy; see `Rule.penalty`."""
        predictions = targets.y, targets.z
        return self.regularisers.of_targets(
            targets.pi, predictions, targets.q, trajectory, online, target
        )

    def output_penalty(self, outputs: Outputs, weight: Array) -> tuple[Array, Metrics]:
        """Rewards the entropy of y and z; see `Rule.output_penalty`."""
        return self.regularisers.of_predictions(outputs["y"], outputs["z"], weight)

    def save(
        self,
        path: str | os.PathLike[str],
        eta: Params,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a file in the published format; see `Rule.save`."""
        metadata: dict[str, Any] = {"bins": self.num_bins, "without": self.without}
        for name in ("bin_spacing", "return_span"):
            if getattr(self, name) != getattr(Disco, name):
                metadata[name] = getattr(self, name)
        weights.save(path, jax.tree.map(np.asarray, eta), metadata | dict(provenance or {}))

    @classmethod
    def stored_settings(cls, archive: npz.Archive) -> dict[str, Any]:
        """Reads sizes off the arrays; see `Rule.stored_settings`."""
        metadata = archive.metadata
        published = "bins" not in metadata
        return {
            "sizes": Sizes.of(weights.checked(archive.arrays)),
            "num_bins": metadata.get("bins", PUBLISHED_BINS),
            "bin_spacing": metadata.get("bin_spacing", 1.0),
            "return_span": metadata.get("return_span", PUBLISHED_RETURN_SPAN * published),
            "without": metadata.get("without", "none"),
        }

    def stored_params(self, archive: npz.Archive) -> Params:
        return weights.checked(archive.arrays)
