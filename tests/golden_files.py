"""Golden files as tests read, copy and judge them."""

import numpy as np

RULE_FILES = ("rule_small.npz", "rule_wide.npz")
LEARNER_FILE = "learner_steps.npz"
META_FILE = "meta_gradient.npz"
WEIGHTS = "meta_network.npz"


def arrays_of(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def below(arrays, prefix):
    """Nested dict of everything below a prefix."""
    tree = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            *folders, last = name.removeprefix(prefix).split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
    return tree


def relative_error(computed, expected):
    return np.max(np.abs(computed - expected)) / (np.max(np.abs(expected)) or 1.0)


def wrong(checks):
    return sorted({(check.dtype, check.quantity) for check in checks if not check.ok})


def write_case(folder, weights, file, name="case.npz"):
    np.savez(folder / WEIGHTS, **weights)
    np.savez(folder / name, **file)
