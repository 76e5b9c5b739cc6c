"""The look of a page, read from its document: layout, texts, and the findings of axe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.page.browser import Browser

LAYOUT = """
(() => {
  const boxes = [...document.querySelectorAll("#cards > .card")]
    .filter(each => each.checkVisibility())
    .map(each => each.getBoundingClientRect());
  const width = document.documentElement.clientWidth;
  let overlapping = 0;
  boxes.forEach((one, index) => boxes.slice(index + 1).forEach(other => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    overlapping += wide > 1 && high > 1;
  }));
  const clipped = each => each !== null && each !== document.documentElement
    && (getComputedStyle(each).overflowX !== "visible" || clipped(each.parentElement));
  const place = ({localName, id, className}) => `${localName}${id && "#" + id}${className && "." + className}`;
  const leaves = each => each.checkVisibility() && each.getBoundingClientRect().right > width + 1;
  const wide = [...document.body.querySelectorAll("*")].filter(each => leaves(each) && !clipped(each.parentElement));
  return {
    wide: [...new Set(wide.map(place))].slice(0, 20),
    scroll_px: Math.max(0, document.documentElement.scrollWidth - width),
    overlapping,
    outside: boxes.filter(each => each.left < -1 || each.right > width + 1).length,
    tags: [...new Set([...document.querySelectorAll("*")].map(each => each.localName))],
  };
})()
"""
"""Cards that overlap or leave the window, how much wider than it the page is and by what, and the kinds of elements."""

HOSTILE_LOOK = r"""
(() => {
  const nodes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) nodes.push(walker.currentNode);
  const texts = nodes.filter(each => each.parentElement.checkVisibility());
  const place = ({localName, id, className}) => `${localName}${id && "#" + id}${className && "." + className}`;
  const where = wanted => [...new Set(texts.filter(wanted).map(each => place(each.parentElement)))];
  const directed = each => each.parentElement.closest("[dir=auto], bdi, input, textarea") !== null;
  const injected = "[data-injected], img[src='x'], script:not([src]), style, [onerror], [onclick]";
  return {
    "elements injected": [...document.querySelectorAll(injected)].map(place)
      .concat(document.title.includes("injected") ? ["title"] : []),
    "texts with control characters": where(each => /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/.test(each.data)),
    "texts that change the direction of others": where(each =>
      /[\u202a-\u202e\u2066-\u2069]/.test(each.data) || (/[\u0590-\u08ff]/.test(each.data) && !directed(each))),
    "texts longer than 1,000 characters": where(each => each.data.length > 1000),
    "views without the markup as text": document.body.innerText.includes("<img src=x") ? [] : ["body"],
  };
})()
"""
"""The places at which hostile texts have become more than text, by what they became."""

SERIOUS = ("serious", "critical")


async def findings_of_axe(tab: Browser, axe: str) -> list[str]:
    """Serious and critical findings of axe about the page as it is shown, each with its places.

    axe runs in a separate world, so that neither it nor the page's policy stands in the other's way.
    """
    world = await tab.own_world()
    await tab.evaluate(f"{axe};undefined", world)
    found: Sequence[Mapping[str, Any]] = await tab.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map("
        "({id, impact, nodes}) => ({id, impact, places: nodes.map(each => each.target.join(' '))})))",
        world,
    )
    return [f"{each['id']}: {json.dumps(each['places'][:5])}" for each in found if each["impact"] in SERIOUS]


def injected(tags: Iterable[str], plain: Iterable[str]) -> set[str]:
    """Kinds of elements that a page has with hostile texts only."""
    return set(tags) - set(plain)
