"""Rules on the Hugging Face Hub: a repository holds one rule file and its card."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from discorl.rules.files import library
from discorl.runs import npz
from discorl.types import UserError

FILE = "rule.npz"
_PREFIX = "hf:"


def push(file: Path, address: str, *, private: bool = False) -> str:
    """Uploads a rule file and its card in one commit, and returns the commit's address.

    A repository that does not exist is created, optionally as a private one.
    """
    repository = _repository(address)
    archive = library.read(file)
    hub = _hub()
    operations = [
        hub.CommitOperationAdd(FILE, file.read_bytes()),
        hub.CommitOperationAdd("README.md", card(repository, archive).encode()),
    ]
    with _errors_reported(address):
        api = hub.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        message = f"Rule of sha256 {archive.sha256}"
        return str(api.create_commit(repository, operations, commit_message=message).commit_url)


def pull(address: str, revision: str | None = None) -> Path:
    """Downloads the rule file of a repository into the Hub's cache, and checks it.

    The revision is a branch, tag or commit, by default that of the default branch.
    """
    repository = _repository(address)
    hub = _hub()
    with _errors_reported(address):
        file = Path(hub.hf_hub_download(repository, FILE, revision=revision))
    library.read(file)
    return file


def card(repository: str, archive: npz.Archive) -> str:
    """The repository's README: a head that the Hub reads, and what the file says of its origin."""
    metadata = archive.metadata
    config = metadata.get("config", {})
    environments = _environments(config, "population") or config.get("envs", [])
    name = repository.partition("/")[2]
    head: dict[str, Any] = {
        "library_name": "discorl",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "meta-learning", "jax", "discorl"],
    }
    if metadata.get("score") is not None:
        head["model-index"] = [_index(name, metadata, config)]
    lines = [f"{key}: {json.dumps(value)}" for key, value in head.items()]  # JSON is YAML
    facts = {
        "kind": metadata.get("kind", "disco"),
        "sha256": archive.sha256,
        "discovered on": ", ".join(environments),
        "meta-steps": metadata.get("meta_steps"),
        "seed": metadata.get("seed"),
        "preset": config.get("preset"),
        "commit of discorl": metadata.get("commit"),
        "note": metadata.get("note"),
    }
    rows = [f"| {fact} | {value} |" for fact, value in facts.items() if value not in (None, "")]
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            f"# {name}",
            "",
            "An update rule for reinforcement learning, discovered with discorl.",
            "",
            "```sh",
            f"discorl rules pull {_PREFIX}{repository} --name {name}",
            f"discorl train --rule {name} --env catch",
            "```",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _index(name: str, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The rule's score in the form of the Hub's metrics."""
    tasks = ", ".join(_environments(config, "evaluate_on")) or "its evaluation tasks"
    metric = {"type": "score", "name": "score, 0: random, 1: optimal", "value": metadata["score"]}
    result = {
        "task": {"type": "reinforcement-learning"},
        "dataset": {"name": tasks, "type": "discorl"},
        "metrics": [metric],
    }
    return {"name": name, "results": [result]}


def _environments(config: Mapping[str, Any], field: str) -> list[str]:
    return [x["env"] if isinstance(x, Mapping) else str(x) for x in config.get(field, ())]


def _repository(address: str) -> str:
    part = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    if not re.fullmatch(f"{_PREFIX}{part}/{part}", address):
        raise UserError(f"{address!r}: expected {_PREFIX}USER/REPOSITORY")
    return address.removeprefix(_PREFIX)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            'the Hub needs the package huggingface_hub: `pip install "discorl[hub]"`'
        ) from error
    return huggingface_hub


@contextlib.contextmanager
def _errors_reported(address: str) -> Iterator[None]:
    """Failures of the Hub and of the connection as one line."""
    try:
        yield
    except Exception as error:  # the client raises its own, its HTTP library's and OSErrors
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{address}: {type(error).__name__}: {reason}") from error
