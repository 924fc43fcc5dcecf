"""What the benchmarks share: honest FLOP counts, the machine's peak, and timing side by side."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp

PEAK_SIZE = 2048


@contextlib.contextmanager
def loops_unrolled() -> Iterator[None]:
    """Within, every `jax.lax.scan` is traced without a loop.

    XLA's cost analysis counts the body of a loop once, however often it runs. A program is
    therefore counted in a version without loops.
    """
    scan = jax.lax.scan
    jax.lax.scan = functools.partial(scan, unroll=True)
    try:
        yield
    finally:
        jax.lax.scan = scan


def flops(function: Callable, *arguments) -> float:
    """XLA's FLOP count of the optimised program."""
    with loops_unrolled():
        # A fresh wrapper, so that no trace with loops is reused.
        compiled = jax.jit(lambda *args: function(*args)).lower(*arguments).compile()
    return compiled.cost_analysis()["flops"]


def peak_probe(clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """A function that measures the FLOP/s of one large matrix product, by seconds of a clock."""
    product = jax.jit(lambda a, b: a @ b)
    a = jnp.ones((PEAK_SIZE, PEAK_SIZE))
    product(a, a).block_until_ready()

    def measure() -> float:
        start = clock()
        product(a, a).block_until_ready()
        return 2 * PEAK_SIZE**3 / (clock() - start)

    return measure


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def clocks() -> tuple[float, float]:
    """Seconds that passed, and seconds that this process had of any core."""
    return time.perf_counter(), time.process_time()


def table(rows: Sequence[dict]) -> str:
    """Rows of equal keys as aligned text."""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells
    )


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def report(rows: Sequence[dict]) -> None:
    """Prints a table for people, then JSON for programs."""
    print(table(rows))
    print(json.dumps(rows))
