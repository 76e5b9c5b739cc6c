"""The site of the documentation, for mkdocs: the order of its pages, and what links to files outside docs/ lead to.

Rooms' README.md, and CHANGELOG, CONTRIBUTING and SECURITY, become pages under develop/. Other files that a page links
to are shown below files/: as they are if a browser shows them, else as a page of code.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

from scripts.documents.links import links, resolve, without_fences

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "start": "install demo first-robot serve-your-checkpoint in-process simulators choose",
    "robots": "loop-joints loop-tool cameras-and-state chunks latency hold-stop-reset act-http clients tunnels",
    "policies": "index openvla openvla-oft act smolvla pi lerobot-any write-your-own four-bits static-graphs",
    "chat": "index api prefixes precision drafts long-context four-bits kv260",
    "operate": "live-page deploy jetson metrics dashboards logs traces recording load-test tuning security "
    "reliability troubleshooting",
    "benchmarks": "index closed-loop pipeline policies chat cpu-int4 long-context reliability front-ends gpu",
    "reference": "configuration commands sdk http events protocol reasons glossary",
    "develop": "contributing changelog reporting-security architecture testing releases writing kernels formats",
}
"""Folders of docs/ in their order, each with its first pages; other pages follow by name."""
AT_THE_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "develop/changelog.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "SECURITY.md": "develop/reporting-security.md",
}
IN_DEVELOP = "architecture.md"
ROOMS = "develop/rooms"
SHOWN = {".json", ".png", ".svg", ".jpg", ".gif", ".pdf", ".html", ".csv"}
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", ".sv": "verilog", ".proto": "protobuf"}
LIST_ITEM = re.compile(r"( *)(?:[-*+]|\d+[.)])[ \t]+\S")
COMMENTS = re.compile(r"\A\s*(?:<!--.*?-->\s*)+", re.DOTALL)
UNNEEDED = ("404.html", "sitemap.xml", "sitemap.xml.gz", "assets/javascripts/lunr")

_origins: dict[str, str] = {}
"""Where each page of this build comes from: path in the repository by path in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files outside docs/, and those that they link to."""
    _origins.clear()
    rooms = [_relative(path) for top in ("edgeflow", "client") for path in sorted((ROOT / top).rglob("README.md"))]
    waiting = [name for name in [*AT_THE_ROOT, *rooms] if (ROOT / name).is_file() and name != "README.md"]
    for file in files:
        if file.is_documentation_page():
            _origins[file.src_uri] = f"docs/{file.src_uri}"
            waiting += _outside(_origins[file.src_uri])
    while waiting:
        path = waiting.pop()
        uri = site_uri(path)
        if uri in _origins or not (ROOT / path).exists() or files.get_file_from_path(uri):
            continue
        _origins[uri] = path
        files.append(_file(path, uri, config))
        if path.endswith(".md") and (ROOT / path).is_file():
            waiting += _outside(path)
    config.nav = _nav(sorted(_origins))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite links that leave docs/, and leave out comments before the heading, which hide it from the navigation."""
    origin = _origins.get(page.file.src_uri, "")
    markdown = COMMENTS.sub("", markdown)
    if not origin.endswith(".md"):
        return markdown
    for link in reversed(list(links(markdown))):
        path, anchor = resolve(origin, link.target)
        if not (_is_outside(origin) or _is_outside(path)):
            continue
        target = posixpath.relpath(site_uri(path), posixpath.dirname(page.file.src_uri) or ".")
        markdown = markdown[: link.start] + target + (anchor and f"#{anchor}") + markdown[link.end :]
    return lists_apart(markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove what only a public site needs, and the indentation of result files, a third of their size."""
    site = Path(config.site_dir)
    for path in [*site.rglob("*.map"), *(site / name for name in UNNEEDED)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in (site / "files").rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")) + "\n")


def site_uri(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    if not _is_outside(path):
        return path.removeprefix("docs/")
    if path in AT_THE_ROOT:
        return AT_THE_ROOT[path]
    if (ROOT / path / "README.md").is_file():
        return site_uri(f"{path}/README.md")
    if path.endswith("/README.md"):
        return f"{ROOMS}/{posixpath.dirname(path)}.md"
    return f"files/{path}" if Path(path).suffix in SHOWN else f"files/{path}.md"


def lists_apart(markdown: str) -> str:
    """Put a blank line before each list, which code hosts do not ask for."""
    plain = without_fences(markdown).split("\n")
    lines = markdown.split("\n")
    for at in range(len(lines) - 1, 0, -1):
        item, before = LIST_ITEM.match(plain[at]), plain[at - 1]
        if item and not item[1] and before.strip() and not LIST_ITEM.match(before) and not before.startswith(" "):
            lines.insert(at, "")
    return "\n".join(lines)


def _file(path: str, uri: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if not uri.endswith(".md"):
        return File.generated(config, uri, abs_src_path=str(source))
    if path.endswith(".md"):
        return File.generated(config, uri, content=source.read_text())
    if source.is_dir():
        shown = "\n".join(f"- `{each.name}`" for each in sorted(source.iterdir()) if each.name[0] not in "._")
    else:
        shown = f"````{LANGUAGES.get(source.suffix, 'text')}\n{source.read_text()}\n````"
    head = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
    return File.generated(config, uri, content=head + shown + "\n", inclusion=InclusionLevel.NOT_IN_NAV)


def _nav(pages: list[str]) -> list[dict[str, object]]:
    nav: list[dict[str, object]] = [{"Home": "index.md"}] if "index.md" in pages else []
    for folder, names in SECTIONS.items():
        first = [f"{folder}/{name}.md" for name in names.split()]
        first = [IN_DEVELOP if uri == f"{folder}/{IN_DEVELOP}" else uri for uri in first]
        found = [uri for uri in first if uri in pages]
        rooms = [uri for uri in pages if uri.startswith(f"{ROOMS}/")]
        found += [uri for uri in pages if uri.startswith(f"{folder}/") and uri not in (*first, *rooms)]
        entries: list[object] = [*found]
        if folder == "develop":
            entries += [uri for uri in pages if "/" not in uri and uri not in ("index.md", IN_DEVELOP)]
            entries += [{"Rooms": rooms}] if rooms else []
        if entries:
            nav.append({folder.capitalize(): entries})
    return nav


def _outside(page: str) -> list[str]:
    """Files outside docs/ that a page links to."""
    found = (resolve(page, link.target)[0] for link in links((ROOT / page).read_text()))
    inside = (path for path in found if (ROOT / path).resolve().is_relative_to(ROOT))  # a page may link to anything
    return [path for path in inside if _is_outside(path) and path != "README.md"]


def _is_outside(path: str) -> bool:
    return not path.startswith("docs/")


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
