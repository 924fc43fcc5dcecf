"""The fenced blocks and the commands of the documentation, as a reader would paste them."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
)
_FENCE = re.compile(r"^```(\w+)?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
# Mentions of other commands in the prose seldom have their arguments.
_INLINE = re.compile(r"`(discorl (?:train|discover|compare) [^`]+)`")
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, the name of the file that it is, and its text."""

    language: str
    title: str | None
    text: str


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    found = []
    for language, information, text in _FENCE.findall(text_of(page)):
        title = _TITLE.search(information)
        found.append(Block(language, title and title[1], text))
    return found


def files(page: str) -> dict[str, str]:
    """The files that a page tells its reader to write, by name."""
    return {block.title: block.text for block in blocks(page) if block.title}


def scripts(page: str) -> str:
    """Everything that a page tells its reader to paste into Python."""
    pasted = [block for block in blocks(page) if block.language == "python" and not block.title]
    return "\n".join(block.text for block in pasted)


def commands(page: str) -> Iterator[list[str]]:
    """Every command in shell blocks and every complete `discorl` command in the prose."""
    for block in blocks(page):
        if block.language == "sh":
            yield from _split(block.text)
    prose = _FENCE.sub("", text_of(page))
    for command in _INLINE.findall(prose):
        whole = not command.split()[-1].startswith("--")
        if whole and not _PLACEHOLDER.search(command):
            yield from _split(" ".join(command.split()))


def _split(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word not in ("&&", "|", ";"):
                words.append(word)
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
