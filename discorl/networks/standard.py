"""The standard network: a torso, an optional LSTM, heads, and a model of each action's effects."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from discorl.networks.base import Network, Parts
from discorl.networks.convolutions import convolutions, init_convolutions, init_nature, nature
from discorl.networks.layers import RELU_GAIN, init_linear, init_mlp, linear, lstm_step, mlp
from discorl.networks.recurrence import Recurrence
from discorl.networks.residual import init_residual, residual
from discorl.types import Array, Key, Outputs, OutputSpec, Params, PyTree, UserError

HEAD_STDDEV = 1e-2  # small, so that a new agent's policy is close to uniform
SMALLEST_IMAGE = 16  # pixels a side; "auto" feeds anything smaller to an MLP

Torso = Literal["auto", "mlp", "residual", "conv", "nature"]


class Encoder(NamedTuple):
    """Encodes the images of an observation, ahead of the torso's MLP."""

    init: Callable[[Key, int, Sequence[int]], Params]  # key, channels, filters of each section
    apply: Callable[[Params, Array], Array]  # [N, height, width, channels] -> [N, features]
    gain: float = 1.0  # on the initial weights of the layers that follow


# By torso; `Torso` lists the same names. With "auto", images get the first.
ENCODERS = {
    "residual": Encoder(init_residual, residual),
    "conv": Encoder(init_convolutions, convolutions),
    # Each layer without a gain shrinks the differences between frames, which are small to begin
    # with: a ball of a few pixels.
    "nature": Encoder(init_nature, nature, gain=RELU_GAIN),
}


def _is_image(leaf: jax.ShapeDtypeStruct, torso: Torso) -> bool:
    if torso == "mlp" or len(leaf.shape) not in (2, 3):
        return False
    first, *sides = leaf.shape
    if len(sides) == 2 and first in (1, 3, 4) and min(sides) >= SMALLEST_IMAGE:
        raise UserError(
            f"an observation of shape {leaf.shape} looks like an image with its channels first; "
            "expected [height, width, channels]: move that axis to the end, or choose the torso "
            "'mlp' if it is not an image"
        )
    return torso in ENCODERS or min(leaf.shape[:2]) >= SMALLEST_IMAGE


def _with_channels(images: Array) -> Array:
    """Adds a channel to images [N, height, width] without channels."""
    return images[..., None] if images.ndim == 3 else images


@dataclasses.dataclass(frozen=True)
class _Standard:
    """Sizes of the network; its methods are the functions that `Network` is made of."""

    spec: OutputSpec
    images: tuple[bool, ...]  # for each leaf of the observation, whether it is an image
    encoder: Encoder  # of the images
    hidden: tuple[int, ...]
    filters: tuple[int, ...]
    action_lstm: int
    action_hidden: tuple[int, ...]
    lstm: int

    def init(self, key: Key, observation: PyTree) -> Params:
        torso_key, head_key, action_key = jax.random.split(key, 3)
        encoder_key, mlp_key = jax.random.split(torso_key)
        params: Params = {}
        encoders = {
            str(i): self.encoder.init(
                jax.random.fold_in(encoder_key, i), _with_channels(x).shape[-1], self.filters
            )
            for i, (x, image) in enumerate(self._leaves(observation))
            if image
        }
        if encoders:
            params["encoder"] = encoders
        features = jax.eval_shape(self._encode, params, observation).shape[-1]
        gain = self.encoder.gain if encoders else 1.0
        params["torso"] = init_mlp(mlp_key, features, self.hidden, gain=gain)
        width = self.hidden[-1] if self.hidden else features
        if self.lstm:
            lstm_key = jax.random.fold_in(torso_key, 1)
            params["lstm"] = init_linear(lstm_key, width + self.lstm, 4 * self.lstm)
            width = self.lstm
        names = sorted(self.spec.state)
        params["head"] = {
            name: init_linear(k, width, math.prod(self.spec.state[name]), stddev=HEAD_STDDEV)
            for name, k in zip(names, jax.random.split(head_key, len(names)), strict=True)
        }
        if self.spec.action:
            params["action_model"] = self._init_action_model(action_key, width)
        return params

    def _init_action_model(self, key: Key, width: int) -> Params:
        root_key, lstm_key, heads_key = jax.random.split(key, 3)
        names = sorted(self.spec.action)
        size, actions = self.action_lstm, self.spec.num_actions
        heads = {
            name: init_mlp(k, size, (*self.action_hidden, math.prod(self.spec.action[name])))
            for name, k in zip(names, jax.random.split(heads_key, len(names)), strict=True)
        }
        root = init_linear(root_key, width, size)
        return {"root": root, "lstm": init_linear(lstm_key, actions + size, 4 * size)} | heads

    def _leaves(self, observation: PyTree) -> list[tuple[Array, bool]]:
        return list(zip(jax.tree.leaves(observation), self.images, strict=True))

    def _encode(self, params: Params, observation: PyTree, dtype: jnp.dtype | None = None) -> Array:
        features = []
        for i, (x, image) in enumerate(self._leaves(observation)):
            scale = 255 if image and x.dtype == jnp.uint8 else 1
            x = x.astype(dtype or jnp.float32)
            if image:
                images = _with_channels(x) / scale
                features.append(self.encoder.apply(params["encoder"][str(i)], images))
            else:
                features.append(x.reshape(x.shape[0], -1))
        return jnp.concatenate(features, axis=-1)

    def embed(self, params: Params, observation: PyTree) -> Array:
        """The torso: [N, width]."""
        dtype = jax.tree.leaves(params["head"])[0].dtype
        return mlp(params["torso"], self._encode(params, observation, dtype))

    def core_inputs(self, params: Params, observation: PyTree) -> Array:
        """Inputs to the LSTM's gates from observations: [N, 4 lstm]."""
        layer = params["lstm"]
        return self.embed(params, observation) @ layer["w"][: -self.lstm] + layer["b"]

    def core_step(
        self, params: Params, inputs: Array, state: tuple[Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        """One LSTM step; the heads read the hidden state."""
        hidden, cell = state
        state = lstm_step(inputs + hidden @ params["lstm"]["w"][-self.lstm :], cell)
        return state[0], state

    def observe(self, params: Params, observation: PyTree) -> tuple[Outputs, PyTree]:
        """Reads the LSTM's features instead of observations, if there is an LSTM."""
        embedding = observation if self.lstm else self.embed(params, observation)
        outputs = {
            name: linear(params["head"][name], embedding).reshape(-1, *shape)
            for name, shape in self.spec.state.items()
        }
        if not self.spec.action:
            return outputs, ()
        model = params["action_model"]
        cell = linear(model["root"], embedding)
        # The recurrent product does not depend on the action, so it is computed once.
        recurrent = jnp.tanh(cell) @ model["lstm"]["w"][self.spec.num_actions :]
        return outputs, (cell, recurrent + model["lstm"]["b"])

    def _heads(self, model: Params, hidden: Array) -> Outputs:
        return {
            name: mlp(model[name], hidden).reshape(*hidden.shape[:-1], *shape)
            for name, shape in self.spec.action.items()
        }

    def all_actions(self, params: Params, root: PyTree) -> Outputs:
        if not self.spec.action:
            return {}
        cell, recurrent = root
        model = params["action_model"]
        by_action = model["lstm"]["w"][: self.spec.num_actions]
        hidden, _ = lstm_step(recurrent[:, None] + by_action, cell[:, None])
        return self._heads(model, hidden)

    def taken_actions(self, params: Params, root: PyTree, action: Array) -> Outputs:
        if not self.spec.action:
            return {}
        cell, recurrent = root
        model = params["action_model"]
        # The gradient of a product with one-hot rows is a product, not a slow scatter.
        one_hot = jax.nn.one_hot(action, self.spec.num_actions, dtype=recurrent.dtype)
        by_action = one_hot @ model["lstm"]["w"][: self.spec.num_actions]
        hidden, _ = lstm_step(recurrent + by_action, cell)
        return self._heads(model, hidden)

    def apply(self, params: Params, observation: PyTree) -> Outputs:
        outputs, root = self.observe(params, observation)
        return outputs | self.all_actions(params, root)


def standard(
    spec: OutputSpec,
    observation: PyTree,
    *,
    torso: Torso = "auto",
    hidden: Sequence[int] = (512, 512),
    filters: Sequence[int] = (16, 32, 32),
    action_lstm: int = 128,
    action_hidden: Sequence[int] = (128,),
    lstm: int = 0,
) -> Network:
    """Builds the standard network for the outputs that a rule asks for.

    Observations are flattened and concatenated; images first go through the torso's convolutional
    encoder. An MLP follows, with linear heads for the state outputs. The action outputs come from
    one LSTM step per action, which starts from the torso's embedding, and an MLP head per output.
    An optional LSTM sits between the torso and everything else.

    Args:
        spec: the rule's outputs.
        observation: shapes and dtypes of one observation, a pytree of `jax.ShapeDtypeStruct`.
        torso: "mlp"; "residual", "nature" (DQN's convolutions) or "conv" (3 x 3 convolutions) for
            every part of an observation that is an image, [height, width] or [height, width,
            channels]; "auto": residual for those of at least 16 pixels a side. Bytes (uint8) of an
            image are divided by 255; those of anything else are not.
        hidden: widths of the torso's MLP.
        filters: filters of each section or layer of the encoder.
        action_lstm: width of the action model's LSTM.
        action_hidden: widths of the hidden layers of the action model's heads.
        lstm: width of an LSTM that carries memory from one step to the next; 0: none.

    Raises:
        UserError: the torso is for images, but nothing in an observation is one; or an image has
            its channels first.
    """
    leaves = jax.tree.leaves(observation)
    images = tuple(_is_image(leaf, torso) for leaf in leaves)
    if torso in ENCODERS and not any(images):
        raise UserError(
            f"torso is {torso!r}, but observations of {[leaf.shape for leaf in leaves]} hold no "
            "image, [height, width] or [height, width, channels]; expected 'mlp' or 'auto'"
        )
    net = _Standard(
        spec=spec,
        images=images,
        encoder=ENCODERS.get(torso) or next(iter(ENCODERS.values())),
        hidden=tuple(hidden),
        filters=tuple(filters),
        action_lstm=action_lstm,
        action_hidden=tuple(action_hidden),
        lstm=lstm,
    )
    recurrence = None
    if lstm:
        state = jax.ShapeDtypeStruct((lstm,), jnp.float32)
        recurrence = Recurrence((state, state), net.core_inputs, net.core_step)
    parts = Parts(net.observe, net.all_actions, net.taken_actions)
    return Network(net.init, net.apply, parts, recurrence, None if lstm else net.embed)
