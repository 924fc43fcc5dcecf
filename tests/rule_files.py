"""Rule files, a library of rules that is a test's own, and the commands of `discorl rules`."""

import hashlib
import json
from pathlib import Path

import numpy as np

from discorl import rules
from discorl.cli.rules import COMMANDS
from discorl.rules import PPO
from discorl.rules.files import library, weights

SMALL = Path(__file__).parent / "golden" / "small" / "meta_network.npz"
CONTENT = SMALL.read_bytes()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class HandMade(PPO):
    """A rule made by hand.

    With more to say.
    """


def isolate(monkeypatch, folder):
    """Rules are sought and kept in that folder alone, and one more is published."""
    for name in ("DISCORL_RULES", "XDG_CACHE_HOME", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DISCORL_CACHE", str(folder / "cache"))
    for name in list(rules.REGISTRY):
        monkeypatch.delitem(rules.REGISTRY, name)
    monkeypatch.setitem(rules.REGISTRY, "by_hand", HandMade)
    monkeypatch.setattr(library, "_BUNDLED", folder / "no_bundled_rules")
    # The tiny rule of the golden values stands in for a published one.
    monkeypatch.setitem(
        library.PUBLISHED,
        "tiny7",
        library.PublishedRule(
            address="http://127.0.0.1:9/weights/tiny_7.npz",
            sha256=SHA256,
            size=len(CONTENT),
            licence="MIT",
            description="A tiny rule.",
        ),
    )


def another_rule(path: Path) -> Path:
    eta = weights.load(SMALL)
    eta["gate"]["b"] = eta["gate"]["b"] + np.float32(1)
    weights.save(path, eta, {"seed": 5})
    return path


def run(*arguments):
    """The data and text of a command, as the command line would run it."""
    command, *rest = map(str, arguments)
    result = COMMANDS[command](list(rest), "discorl rules")
    assert result.ok
    return json.loads(json.dumps(result.data)), result.text
