// Nodes of the page, made and changed without markup. Texts from outside go through `outside`.

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/gu;
const STACKED = /(\p{M}{2})\p{M}+/gu; // marks on top of each other would cover the page
const MOST = 300; // characters of one text

/** An element with properties, `class` and `data` among them, and children. */
export function h(tag, { class: names, data, ...properties } = {}, ...children) {
  const node = document.createElement(tag);
  if (names) node.className = names;
  if (data) Object.assign(node.dataset, data);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Set a text where it changed. */
export function put(node, text) {
  const wanted = String(text);
  if (node.shownText === wanted) return;
  node.shownText = wanted;
  node.textContent = wanted;
}

/** Show or hide a node. */
export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Set a data attribute where it changed. */
export function mark(node, name, value) {
  if (node.dataset[name] !== String(value)) node.dataset[name] = String(value);
}

/** Set an attribute where it changed. */
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** A text from outside: no control characters, no change of direction, not longer than the page can bear. */
export function outside(value, most = MOST) {
  const text = typeof value === "string" ? value : value == null ? "" : String(value);
  const start = text.slice(0, most + 1).replace(CONTROLS, "\ufffd").replace(STACKED, "$1").replace(/[\n\t]+/g, " ");
  return text.length > most ? `${start.slice(0, most)}…` : start;
}

/** A node for texts from outside: each has its own direction. */
export function foreign(tag, names) {
  return h(tag, { class: `foreign ${names ?? ""}`.trim(), dir: "auto" });
}

/** Make a list of nodes match `entries`: nodes are kept by key, moved only where their order changed. */
export function match(parent, nodes, entries, key, made, update) {
  const wanted = new Set();
  let next = parent.firstElementChild;
  for (const entry of entries) {
    const id = key(entry);
    wanted.add(id);
    let node = nodes.get(id);
    if (!node) nodes.set(id, (node = made(entry)));
    const element = node.element ?? node;
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
    update?.(node, entry);
  }
  for (const [id, node] of nodes) {
    if (wanted.has(id)) continue;
    (node.element ?? node).remove();
    node.ended?.();
    nodes.delete(id);
  }
}
