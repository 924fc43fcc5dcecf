"""Makes small golden files of full-size ones: `python tests/golden/thin.py FULL_DIR OUT_DIR`.

Inputs stay as they are, in float32 where that loses nothing. Expected arrays above MAX_BYTES are
left out, and named in the file, so that `discorl verify` can tell them from arrays that got lost.
"""

import json
import sys
from pathlib import Path

import numpy as np

FILES = ("learner_steps.npz", "meta_gradient.npz")
MAX_BYTES = 5000


def is_expected(name: str) -> bool:
    return "/out/" in name or name.startswith(("final/", "meta_grads/", "meta_log/"))


def thin(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    left_out = [n for n, x in arrays.items() if is_expected(n) and x.nbytes > MAX_BYTES]
    kept = {n: x if is_expected(n) else narrowed(x) for n, x in arrays.items() if n not in left_out}
    metadata = json.dumps({"left_out": sorted(left_out)})
    return kept | {"metadata": np.frombuffer(metadata.encode(), np.uint8)}


def narrowed(x: np.ndarray) -> np.ndarray:
    exact = x.dtype == np.float64 and np.array_equal(x, x.astype(np.float32))
    return x.astype(np.float32) if exact else x


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    for name in FILES:
        with np.load(source / name) as file:
            np.savez_compressed(target / name, **thin(dict(file)))
