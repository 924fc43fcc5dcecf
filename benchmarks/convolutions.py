"""Convolutional torsos on a CPU: matrix products against XLA's own convolutions, in one run.

    python benchmarks/convolutions.py [--images 464]

Measures the gradient of each torso with respect to its parameters, called by itself and in the body
of a loop, which is how a compiled training run computes it. XLA's own convolutions of large images
take minutes in a loop; use `--torsos conv` for a quick look.
"""

import argparse
import time

import jax
import jax.numpy as jnp
from measuring import report

from discorl.networks import convolutions
from discorl.networks.standard import ENCODERS

# Shape of an image, filters, and how many times as many images as `--images`.
SIZES = {
    "conv": ((10, 10, 4), (16,), 4),
    "nature": ((84, 84, 4), (32, 64, 64), 1),
    "residual": ((84, 84, 4), (16, 32, 32), 1 / 8),
}


def milliseconds(function, *arguments, repeats: int) -> float:
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    start = time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(compiled(*arguments))
    return 1e3 * (time.process_time() - start) / repeats


def measure(torso: str, images: int, repeats: int) -> dict[str, float]:
    shape, filters, times = SIZES[torso]
    encoder = ENCODERS[torso]
    params = encoder.init(jax.random.key(0), shape[-1], filters)
    image = jax.random.uniform(jax.random.key(1), (round(images * times), *shape))

    def step(params):
        gradient = jax.grad(lambda params: jnp.square(encoder.apply(params, image)).mean())(params)
        return jax.tree.map(lambda x, g: x - 1e-4 * g, params, gradient)

    def loop(params):
        return jax.lax.fori_loop(0, 2, lambda _, params: step(params), params)

    return {
        "alone_ms": milliseconds(step, params, repeats=repeats),
        "in_a_loop_ms": milliseconds(loop, params, repeats=repeats) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torsos", nargs="+", default=tuple(SIZES), choices=tuple(SIZES))
    parser.add_argument("--images", type=int, default=464)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    ways = {"products": convolutions._by_products, "xla": convolutions._by_library}
    rows = []
    for torso in arguments.torsos:
        for name, way in ways.items():
            convolutions._by_products = way
            found = measure(torso, arguments.images, arguments.repeats)
            rows.append({"torso": torso, "convolutions": name} | found)
    report(rows)


if __name__ == "__main__":
    main()
