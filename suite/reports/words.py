"""What two versions of the page say differently, whatever their markup and pictures are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html.parser import HTMLParser

_LONGEST = 300  # characters of one side of a difference
_UNREAD = ("style", "script", "title")


@dataclass(frozen=True, kw_only=True)
class ChangedWords:
    """A place of the page that does not say what the store gives.

    Attributes:
        page: name of the page's file.
        old: what the page says there; empty where it says nothing.
        new: what it would say if it was built from the store now; likewise.
    """

    page: str
    old: str
    new: str

    def __str__(self) -> str:
        """One readable line."""
        if not self.old:
            return f"{self.page}: the store gives {_short(self.new)}, the page does not say it"
        if not self.new:
            return f"{self.page}: the page says {_short(self.old)}, the store gives no such words"
        return f"{self.page}: the page says {_short(self.old)}, the store gives {_short(self.new)}"


def changed_words(page: str, old: str, new: str) -> Iterator[ChangedWords]:
    """Differences of the words of two pages, in order.

    Args:
        page: name of the page's file.
        old: HTML of the page that was published.
        new: HTML of the page as it is built from the store now.
    """
    before, after = words_of(old), words_of(new)
    if before == after:
        return
    for kind, i, j, m, n in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        paired = j - i == n - m
        for at in range(max(j - i, n - m) if paired else 1):
            one = before[i + at : i + at + 1] if paired else before[i:j]
            other = after[m + at : m + at + 1] if paired else after[m:n]
            yield ChangedWords(page=page, old=" | ".join(one), new=" | ".join(other))


def words_of(html: str) -> Sequence[str]:
    """The texts of a page in order, one for each place between two tags."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.texts


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._unread = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unread += tag in _UNREAD

    def handle_endtag(self, tag: str) -> None:
        self._unread -= tag in _UNREAD

    def handle_data(self, data: str) -> None:
        if not self._unread and (text := " ".join(data.split())):
            self.texts.append(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
