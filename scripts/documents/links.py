"""Links and anchors in Markdown, outside its code. Paths are relative to the repository, with slashes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?(?:^ *\2[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|<!--.*?-->", re.DOTALL)
LINK = re.compile(r"""(?:\]\(\s*<?|^ {0,3}\[[^\]]+\]:\s+<?|\b(?:src|href)=["'])(?P<target>[^\s)"'>]+)""", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
IDENTIFIER = re.compile(r"""\b(?:id|name)=["']([^"']+)""")
MARKUP = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?|<[^>]+>|[`*]")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link, and where its target stands in the text."""

    start: int
    end: int
    target: str


def links(text: str) -> Iterator[PageLink]:
    """The links of a page that do not lead to another host."""
    plain = CODE.sub(_blank, without_fences(text))
    for match in LINK.finditer(plain):
        if not ELSEWHERE.match(match["target"]):
            yield PageLink(match.start("target"), match.end("target"), match["target"])


def resolve(page: str, target: str) -> tuple[str, str]:
    """Path and anchor that a link on a page leads to."""
    path, _, anchor = unquote(target).partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page), anchor


def anchors(text: str) -> set[str]:
    """The anchors of a page. A heading that stands on it twice has none, since sites number them differently."""
    plain = without_fences(text)
    slugs = [slug(heading) for heading in HEADING.findall(plain)]
    return {each for each in slugs if slugs.count(each) == 1} | set(IDENTIFIER.findall(plain))


def slug(heading: str) -> str:
    """The anchor of a heading, on the site (pymdownx.slugs) and on code hosts."""
    return re.sub(r"[^\w\- ]", "", MARKUP.sub(r"\1", heading).strip()).lower().replace(" ", "-")


def without_fences(text: str) -> str:
    """The text with blanks in the place of its code blocks."""
    return FENCE.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
