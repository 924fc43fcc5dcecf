"""Actions of several dimensions as one discrete action."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from discorl.types import UserError

MOST_ACTIONS = 1000


def combinations(
    choices: Iterable[Sequence[Any] | np.ndarray], shape: tuple[int, ...], dtype: Any, name: str
) -> np.ndarray:
    """Every combination of one value for each dimension: [A, *shape]."""
    choices = list(choices)
    count = math.prod(len(values) for values in choices)
    if count > MOST_ACTIONS:
        raise UserError(
            f"{name}: {count} combinations of actions; expected at most {MOST_ACTIONS}: give "
            "fewer bins, or choose among fewer actions in a wrapper of your own"
        )
    return np.array(list(itertools.product(*choices)), dtype).reshape(count, *shape)
