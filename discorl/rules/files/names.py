"""The components of a learned rule: their places in the tree `eta`, and their published names.

A *layer* is `{"w": [inputs, outputs], "b": [outputs]}`. A rule is a tree of layers:

    y_net, z_net       MLPs, [P] -> one embedding of a prediction vector
    policy_net         action blocks, [A, inputs] -> [A, C]
    trajectory_lstm    fused LSTM kernel over the features of a step and the hidden state
    gate               meta-RNN hidden state -> a factor for each trajectory feature
    embedding          what the meta-RNN is told of a step
    y_hat, z_hat       targets of the predictions, [P]
    pi_hat_blocks      action blocks under the policy target
    pi_hat             target of the policy, one logit for each action
    meta_rnn           its own y_net, z_net and policy_net, then input (an MLP) and lstm
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Layer = dict[str, np.ndarray]
Eta = dict[str, Any]

_META_RNN = "lstm/~/meta_lstm/~unroll/"


class Kind(enum.Enum):
    """What a component is made of."""

    LAYER = "a single layer"
    MLP = "layers linear_0, linear_1, ..."
    BLOCKS = "action blocks conv1_d, conv1_d_1, ..."


@dataclasses.dataclass(frozen=True)
class Part:
    """One component of a rule, in memory and under its published name."""

    path: str  # the keys that lead to it in eta, with a slash between
    prefix: str  # of its published names
    kind: Kind

    def layer_name(self, index: int) -> str:
        """The published name of one of its layers."""
        if self.kind is Kind.LAYER:
            return self.prefix
        if self.kind is Kind.MLP:
            return f"{self.prefix}/~/linear_{index}"
        return f"{self.prefix}/conv1_d" + (f"_{index}" if index else "")

    def depth(self, names: Mapping[str, Any]) -> int:
        """Number of consecutive layers that have an array among the names, at least one."""
        depth = 1
        while self.kind is not Kind.LAYER and any(
            f"{self.layer_name(depth)}/{array}" in names for array in ("w", "b")
        ):
            depth += 1
        return depth


PARTS = (
    Part("y_net", "lstm/mlp", Kind.MLP),
    Part("z_net", "lstm/mlp_1", Kind.MLP),
    Part("policy_net", "lstm/sequential", Kind.BLOCKS),
    Part("trajectory_lstm", "lstm/lstm/linear", Kind.LAYER),
    Part("gate", "lstm/linear", Kind.LAYER),
    Part("embedding", "lstm/linear_1", Kind.LAYER),
    Part("y_hat", "lstm/linear_2", Kind.LAYER),
    Part("z_hat", "lstm/linear_3", Kind.LAYER),
    Part("pi_hat_blocks", "lstm/sequential_1", Kind.BLOCKS),
    Part("pi_hat", "lstm/linear_4", Kind.LAYER),
    Part("meta_rnn/y_net", _META_RNN + "mlp", Kind.MLP),
    Part("meta_rnn/z_net", _META_RNN + "mlp_1", Kind.MLP),
    Part("meta_rnn/policy_net", _META_RNN + "sequential", Kind.BLOCKS),
    Part("meta_rnn/input", _META_RNN + "mlp_2", Kind.MLP),
    Part("meta_rnn/lstm", _META_RNN + "lstm/linear", Kind.LAYER),
)
PART_AT = {part.path: part for part in PARTS}


def layers_of(eta: Mapping[str, Any], part: Part) -> Sequence[Layer]:
    """The layers of one component of a rule."""
    node: Any = eta
    for key in part.path.split("/"):
        node = node[key]
    return (node,) if part.kind is Kind.LAYER else node


def columns_of(layer: Layer) -> int:
    """The number of outputs of a layer."""
    return int(layer["w"].shape[-1])
