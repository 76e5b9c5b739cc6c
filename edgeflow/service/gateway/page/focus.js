// One robot large: pictures, latency, chunks against what was executed, outcomes, warnings, events.

import { frontOf, limitText, reasonText, StateBadge, Strip } from "./cards.js";
import { Canvas, chunkWindow, drawChunk, drawLatency } from "./charts.js";
import { attribute, foreign, h, mark, match, outside, put, show } from "./dom.js";
import { clock, count, duration, hertz, known, meaning, number, percent, rate, span } from "./words.js";

const EVENTS = 30;
const OUTCOMES = ["acted", "superseded", "rejected", "dropped"];
const SPOKEN_MS = 2000; // between changes of the charts' texts

/** A large number with its name and what it is held against. */
class Figure {
  constructor(label) {
    this.value = h("strong");
    this.unit = h("span", { class: "unit" });
    this.note = foreign("span", "muted");
    this.element = h("p", { class: "figure" }, h("span", { class: "label" }, label), this.value, this.unit, this.note);
  }

  update([value, unit], note = "") {
    put(this.value, value);
    put(this.unit, unit);
    put(this.note, note);
  }
}

/** A heading with a body. */
const box = (title, ...children) => h("section", { class: "box" }, h("h3", {}, title), ...children);

const key = (kind, text) => h("li", {}, h("i", { class: `key ${kind}`, ariaHidden: "true" }), text);

/** The charts of chunks: one per dimension of the actions. */
class Chunks {
  constructor(robot) {
    this.canvases = robot.facts.actions.slice(0, 32).map(({ name, unit, relative }) => {
      const node = h("canvas", { role: "img" });
      const caption = foreign("figcaption");
      const title = `${outside(name, 40)} (${outside(unit, 20)}${relative ? " per action" : ""})`.replace("()", "");
      put(caption, title);
      return { canvas: new Canvas(node), name: outside(name, 40), unit: outside(unit, 20), title, element: h("figure", {}, caption, node) };
    });
    this.grid = h("div", { class: "dimensions" }, ...this.canvases.map((each) => each.element));
    this.executed = key("executed", "executed, as the robot reports it");
    const earlier = robot.facts.horizon > 1 ? [key("earlier", "earlier chunks")] : [];
    const newest = robot.facts.horizon > 1 ? "newest chunk, commanded" : "action, commanded";
    const legend = h("ul", { class: "legend" }, key("commanded", newest), ...earlier, this.executed, key("now", "now"));
    this.empty = h("p", { class: "muted" }, "No chunk yet.");
    this.silent = h("p", { class: "muted", hidden: true }, "This robot does not report what it executes: only what was commanded is shown.");
    this.rows = this.canvases.map(({ title }) => {
      const cells = Array.from({ length: 3 }, () => h("td"));
      const head = foreign("th");
      head.scope = "row";
      put(head, title);
      return { cells, element: h("tr", {}, head, ...cells) };
    });
    const heads = ["Action", "Commanded now", "Executed last", "Commanded less executed"].map((text) => h("th", { scope: "col" }, text));
    this.table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...this.rows.map((row) => row.element)));
    this.details = h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: "Actions as a table" }, this.table));
    const [past, ahead] = chunkWindow(robot);
    const axis = h("p", { class: "muted axis" }, `Time in ms before and after now (${number(past / 1000)} s to +${number(ahead / 1000)} s)`);
    this.element = box("Commanded and executed", legend, this.silent, this.empty, this.grid, axis, this.details);
    this.spoken = 0;
  }

  update(robot, now) {
    show(this.empty, robot.chunks.length === 0);
    show(this.executed, robot.executed.length > 0);
    show(this.silent, robot.chunks.length > 20 && robot.executed.length === 0);
    const speak = now - this.spoken > SPOKEN_MS;
    if (speak) this.spoken = now;
    this.canvases.forEach(({ canvas, name, unit }, dimension) => {
      drawChunk(canvas, robot, dimension, now);
      if (!speak && !this.details.open) return;
      const [commanded, executed] = [due(robot, now)?.[dimension], robot.executed.at(-1)?.values[dimension]];
      const text = [number(commanded), number(executed), known(commanded) && known(executed) ? number(commanded - executed) : "–"];
      if (speak) attribute(canvas.node, "aria-label", `${name}: commanded ${text[0]} ${unit}, executed ${text[1]} ${unit}`);
      this.rows[dimension].cells.forEach((cell, column) => put(cell, text[column]));
    });
  }

  ended() {
    for (const each of this.canvases) each.canvas.ended();
  }
}

/** The row of the newest chunk that is due now. */
function due(robot, now) {
  const chunk = robot.chunks.at(-1);
  return chunk?.values[Math.max(0, Math.min(chunk.values.length - 1, Math.floor((now - chunk.time) / chunk.step)))];
}

/** What became of frames, as a bar and as numbers. */
class Outcomes {
  constructor() {
    this.bar = h("div", { class: "outcomes", ariaHidden: "true" });
    this.parts = OUTCOMES.map((name) => this.bar.appendChild(h("i", { data: { outcome: name } })));
    this.list = h("ul", { class: "plain" });
    this.lines = new Map();
    this.element = box("Frames since this page was opened", this.bar, this.list);
  }

  update(robot) {
    const entries = [...robot.outcomes].sort((a, b) => b[1] - a[1]).slice(0, 12);
    const total = entries.reduce((sum, [, n]) => sum + n, 0) || 1;
    OUTCOMES.forEach((name, index) => {
      const part = entries.reduce((sum, [key, n]) => sum + (key.split(" ")[0] === name ? n : 0), 0);
      this.parts[index].style.flexGrow = part / total;
    });
    match(this.list, this.lines, entries, ([name]) => name, ([name]) => {
      const [text, value] = [foreign("span"), h("span", { class: "number" })];
      const [outcome, reason] = name.split(" ");
      put(text, outside([outcome, meaning(reason) || reason].filter(Boolean).join(": "), 100));
      return { value, element: h("li", {}, h("i", { class: "dot", data: { outcome }, ariaHidden: "true" }), text, value) };
    }, ({ value }, [, n]) => put(value, `${n} · ${percent(n / total)}`));
  }
}

/** Everything about one robot. Made anew for each robot. */
class View {
  constructor(robot, pictures) {
    this.robot = robot;
    const { facts } = robot;
    this.badge = new StateBadge();
    this.reason = foreign("p", "reason");
    this.task = foreign("p", "task");
    this.latency = new Figure("Latency");
    this.rate = new Figure("Actions");
    this.frames = new Figure("Frames");
    this.passes = new Figure("Passes per action");
    this.warnings = h("ul", { class: "warnings" });
    this.warningLines = new Map();
    this.pictures = (facts.cameras ?? []).map((_, camera) => pictures.of(robot, camera, true));
    const cameras = this.pictures.map((picture, index) => {
      const name = foreign("figcaption");
      put(name, outside(facts.cameras[index].name, 40));
      return h("figure", {}, picture.element, name);
    });
    this.chart = h("canvas", { class: "latency", role: "img" });
    this.canvas = new Canvas(this.chart);
    this.chunks = new Chunks(robot);
    this.outcomes = new Outcomes();
    this.facts = h("dl", { class: "facts" });
    this.terms = new Map();
    this.state = foreign("p", "state-values");
    this.stateBox = box("State of the newest frame", this.state);
    this.events = h("ol", { class: "plain events" });
    this.eventLines = new Map();
    this.eventNumbers = new WeakMap();
    this.number = 0;
    this.noEvents = h("p", { class: "muted" }, "None while this page watched.");
    const principal = foreign("span");
    put(principal, outside(facts.principal, 60));
    this.title = h("h2", { tabIndex: -1 }, `#${facts.session} `, principal);
    this.jump = h("button", { class: "jump", type: "button" }, "Operate");
    const who = foreign("span", "who");
    put(who, outside(`${facts.model ? `${facts.model} · ` : ""}${frontOf(facts)} from ${facts.peer || "unknown"}`, 100));
    this.element = h(
      "div",
      { class: "view" },
      h("header", { class: "head" }, this.title, this.badge.element, this.reason, who, this.jump, this.task),
      this.warnings,
      h("div", { class: "figures" }, ...[this.latency, this.rate, this.frames, this.passes].map((each) => each.element)),
      h("div", { class: "sight" }, h("div", { class: "cameras" }, ...cameras), box("Latency of each action, in ms", this.chart)),
      this.chunks.element,
    );
    this.side = h("div", { class: "aside" }, box("Session", this.facts), this.outcomes.element, box("HOLD, STOP and notices", this.noEvents, this.events), this.stateBox);
    this.spoken = 0;
  }

  update(store) {
    const { robot } = this;
    const now = store.now();
    const figures = store.figures(robot);
    mark(this.element, "state", robot.closed ? "ended" : robot.status.state);
    this.badge.update(robot);
    const code = robot.status.reason && !robot.closed ? ` (${robot.status.reason})` : "";
    const reason = outside(reasonText(robot, now) + code);
    put(this.reason, reason);
    show(this.reason, Boolean(reason));
    put(this.task, outside(robot.status.instruction));
    show(this.task, Boolean(robot.status.instruction));
    this.latency.update(duration(figures.p50), `p99 ${span(figures.p99)} · ${limitText(robot)}`);
    mark(this.latency.element, "over", Boolean(robot.limit) && figures.p99 > robot.limit);
    const { rate_hz: hz, age_ms: age } = robot.status.forecast ?? {};
    this.rate.update([rate(figures.rate), "Hz"], known(hz) ? `forecast ${hertz(hz)}, ${span(age)}` : "");
    this.frames.update([rate(figures.frames), "Hz"], robot.facts.period_ms ? `declared ${hertz(1000 / robot.facts.period_ms)}` : "");
    this.passes.update([known(figures.passes) ? figures.passes.toFixed(1) : "–", ""], robot.status.mode ? outside(`mode ${robot.status.mode}`, 40) : "");
    drawLatency(this.canvas, robot, now);
    if (now - this.spoken > SPOKEN_MS) {
      this.spoken = now;
      attribute(this.chart, "aria-label", `Latency: median ${span(figures.p50)}, 99th percentile ${span(figures.p99)}, ${limitText(robot)}`);
    }
    this.chunks.update(robot, now);
    this.outcomes.update(robot);
    this.#lists(robot);
  }

  #lists(robot) {
    const warnings = (robot.status.warnings ?? []).slice(0, 12).map(({ kind, text }) => outside(`${kind}: ${text}`));
    match(this.warnings, this.warningLines, warnings, (text) => text, (text) => Object.assign(foreign("li"), { textContent: text }));
    show(this.warnings, warnings.length > 0);
    match(this.facts, this.terms, factsOf(robot), ([term]) => term, ([term]) => {
      const value = foreign("dd");
      return { value, element: h("div", {}, h("dt", {}, term), value) };
    }, ({ value }, [, text]) => put(value, outside(text, 160)));
    const events = robot.events.slice(-EVENTS).reverse();
    show(this.noEvents, events.length === 0);
    match(this.events, this.eventLines, events, (event) => this.#numbered(event), (event) => eventLine(event));
    show(this.stateBox, robot.state.length > 0);
    if (robot.state.length) put(this.state, stateText(robot));
  }

  #numbered(event) {
    if (!this.eventNumbers.has(event)) this.eventNumbers.set(event, this.number++);
    return this.eventNumbers.get(event);
  }

  ended() {
    this.canvas.ended();
    this.chunks.ended();
    for (const each of this.pictures) each.ended();
  }
}

function factsOf(robot) {
  const { facts, status } = robot;
  const seams = [...robot.seams].map(([name, n]) => `${name} ${n}`).join(", ");
  return [
    ["Model", facts.model],
    ["Client", `${frontOf(facts)} from ${facts.peer || "unknown"}`],
    ["Opened", clock(facts.opened)],
    ["Mode", status.mode === facts.mode || !facts.mode ? status.mode : `${status.mode} (asked for ${facts.mode})`],
    ["Pace", status.pace],
    ["Execution", status.execution],
    ["Actions per answer", facts.horizon > 1 ? `${facts.horizon}, ${number(facts.step_ms)} ms apart` : ""],
    ["Seams", seams],
    ["Epoch", status.epoch],
  ].filter(([, value]) => value !== "" && value != null);
}

function stateText(robot) {
  let at = 0;
  const parts = [];
  for (const { name, size, elements, units } of robot.facts.state ?? []) {
    const values = robot.state.slice(at, at + size).map((value, index) => `${elements?.[index] ?? index} ${number(value)} ${units?.[index] ?? ""}`.trim());
    parts.push(`${name}: ${values.join(", ")}`);
    at += size;
  }
  return outside(parts.join(" · ") || robot.state.map(number).join(", "), 600);
}

function eventLine({ time, kind, reason, text }) {
  const name = foreign("span", "kind");
  put(name, outside(kind === "hold" || kind === "stop" ? kind.toUpperCase() : kind, 40));
  const words = foreign("span");
  put(words, outside([meaning(reason) || reason, text].filter(Boolean).join(": ")));
  return h("li", { data: { kind } }, h("span", { class: "time" }, clock(time)), name, words);
}

/** The place of the large view, with those of the operator's panels. */
export class Focus {
  constructor(root, { store, pictures }) {
    this.root = root;
    this.store = store;
    this.pictures = pictures;
    this.view = null;
    this.strip = new Strip(store);
    this.back = h("a", { class: "back", href: "#robots" }, "All robots");
    this.main = h("div", { class: "focus-main" });
    this.operate = h("div");
    this.ask = h("div");
    root.append(h("div", { class: "focus-bar" }, this.back, this.strip.element), this.main, h("div", { class: "focus-side" }, this.operate, this.ask));
  }

  update() {
    const robot = this.store.focus;
    show(this.root, Boolean(robot));
    if (this.view && this.view.robot !== robot) this.#close();
    if (!robot) return;
    if (!this.view) {
      this.view = new View(robot, this.pictures);
      this.view.jump.addEventListener("click", () => this.operate.scrollIntoView());
      this.main.append(this.view.element);
      this.main.append(this.view.side);
    }
    put(this.back, `All robots (${count(this.store.open().length, "robot")})`);
    show(this.strip.element, this.store.sessions.size > 1);
    this.strip.update();
    this.view.update(this.store);
  }

  /** The heading of the robot that is shown. */
  get title() {
    return this.view?.title;
  }

  #close() {
    this.view.ended();
    this.view.element.remove();
    this.view.side.remove();
    this.view = null;
  }
}
