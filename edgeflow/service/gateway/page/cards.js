// The robots as cards: state, latency against its limit, rate, mode, and a picture.

import { Canvas, drawSpark } from "./charts.js";
import { attribute, foreign, h, mark, match, outside, put, show } from "./dom.js";
import { count, duration, endOf, known, lasting, meaning, rate, span, stateOf } from "./words.js";

/** A state as word and shape. */
export class StateBadge {
  constructor() {
    this.word = h("span");
    this.element = h("span", { class: "state" }, h("span", { class: "shape", ariaHidden: "true" }), this.word);
  }

  update(robot) {
    mark(this.element, "state", robot.closed ? "ended" : robot.status.state);
    put(this.word, robot.closed ? "Ended" : outside(stateOf(robot.status.state).word, 20));
  }
}

/** Why a robot holds, and for how long; nothing while it acts. */
export function reasonText(robot, now) {
  const { state, reason, since, operator } = robot.status;
  if (robot.closed) return endOf(robot.closed);
  const time = since ? ` · ${lasting(now - since)}` : "";
  if (operator) return `${operator.reason || "held by an operator"}${operator.by ? ` (${operator.by})` : ""}${time}`;
  if (state === "waiting") return `no answer yet${time}`;
  if (state === "parked") return `${meaning(reason) || reason || "no frames for a while"}${time}`;
  if (state !== "hold" && state !== "stop") return "";
  return `${meaning(reason) || reason || "no reason given"}${time}`;
}

/** What a figure is held against: the limit of latency. */
export function limitText(robot) {
  return robot.limit ? `limit ${span(robot.limit)}` : "no limit";
}

/** A front end's name; robots on gRPC have none. */
export const frontOf = (facts) => facts.front || "gRPC";

class Card {
  constructor(robot, pictures) {
    this.session = robot.session;
    this.badge = new StateBadge();
    this.title = h("a", { class: "title", href: `#robot-${robot.session}` }, `#${robot.session}`);
    this.who = foreign("span", "who");
    put(this.who, outside(robot.facts.principal || `${frontOf(robot.facts)} · ${robot.facts.peer ?? ""}`, 60));
    this.latency = h("strong");
    this.unit = h("span", { class: "unit" });
    this.limit = h("span", { class: "muted" });
    this.rate = h("strong");
    this.spark = h("canvas", { class: "spark", ariaHidden: "true" });
    this.canvas = new Canvas(this.spark);
    this.reason = foreign("p", "reason");
    this.task = foreign("p", "task");
    this.mode = foreign("span", "mode");
    this.warnings = h("span", { class: "warn-count", hidden: true });
    this.pictures = (robot.facts.cameras ?? []).slice(0, 1).map((_, camera) => pictures.of(robot, camera));
    const of = robot.facts.period_ms ? ` of ${rate(1000 / robot.facts.period_ms)}` : "";
    this.element = h(
      "article",
      { class: "card" },
      h("header", {}, h("h3", {}, this.title), this.who, this.badge.element),
      h("div", { class: "look" }, ...this.pictures.map((each) => each.element)),
      h(
        "div",
        { class: "figures" },
        h("p", { class: "figure" }, h("span", { class: "label" }, "Latency"), this.latency, this.unit, this.limit),
        h("p", { class: "figure" }, h("span", { class: "label" }, "Rate"), this.rate, h("span", { class: "unit" }, "Hz"), h("span", { class: "muted" }, of)),
      ),
      this.spark,
      h("footer", {}, this.reason, this.task, h("p", { class: "small" }, this.mode, this.warnings)),
    );
  }

  update(robot, store) {
    const now = store.now();
    const figures = store.figures(robot);
    mark(this.element, "state", robot.closed ? "ended" : robot.status.state);
    this.badge.update(robot);
    const [value, unit] = duration(figures.p50);
    put(this.latency, value);
    put(this.unit, unit);
    put(this.limit, limitText(robot));
    mark(this.element, "over", Boolean(robot.limit) && figures.p99 > robot.limit);
    put(this.rate, rate(figures.rate));
    const reason = outside(reasonText(robot, now), 120);
    put(this.reason, reason);
    show(this.reason, Boolean(reason));
    put(this.task, outside(robot.status.instruction, 120));
    show(this.task, !reason && Boolean(robot.status.instruction));
    const passes = known(figures.passes) ? ` · ${figures.passes.toFixed(1)} passes` : "";
    put(this.mode, outside(`${robot.status.mode ?? robot.facts.mode ?? ""}${passes}`, 60));
    const warnings = robot.status.warnings?.length ?? 0;
    put(this.warnings, count(warnings, "warning"));
    show(this.warnings, warnings > 0);
    drawSpark(this.canvas, robot, now);
  }

  ended() {
    this.canvas.ended();
    for (const each of this.pictures) each.ended();
  }
}

/** Robots in a stable order; those in trouble first if wanted. */
export function ordered(robots, trouble) {
  const rank = (robot) => 10 * stateOf(robot.status.state).rank - (robot.status.warnings?.length ? 1 : 0);
  return robots.toSorted((a, b) => (trouble ? rank(a) - rank(b) : 0) || a.session - b.session);
}

/** All cards. */
export class Cards {
  constructor(root, { store, pictures }) {
    this.root = root;
    this.store = store;
    this.pictures = pictures;
    this.cards = new Map();
    this.trouble = false;
  }

  update() {
    const robots = ordered(this.store.open(), this.trouble);
    mark(this.root, "density", this.#density(robots.length));
    const made = (robot) => new Card(robot, this.pictures);
    const key = (robot) => `${robot.session} ${robot.facts.opened}`;
    match(this.root, this.cards, robots, key, made, (card, robot) => card.update(robot, this.store));
  }

  /** Move the keyboard to the card of a robot. */
  focus(session) {
    for (const { title, session: own } of this.cards.values()) if (own === session) title.focus();
  }

  /** Small cards where large ones would not fit on the screen. */
  #density(robots) {
    const across = Math.max(1, Math.floor(innerWidth / 340));
    return Math.ceil(robots / across) * 300 > innerHeight - 200 && robots > 2 ? "compact" : "roomy";
  }
}

/** The states of all robots as a line of links, for the large view of one. */
export class Strip {
  constructor(store) {
    this.store = store;
    this.links = new Map();
    this.element = h("nav", { class: "strip", ariaLabel: "Robots" });
  }

  update() {
    match(this.element, this.links, ordered([...this.store.sessions.values()], false), (robot) => robot.session, (robot) => this.#link(robot), (link, robot) => {
      const shown = robot.session === this.store.shown;
      link.badge.update(robot);
      attribute(link.element, "aria-current", shown);
      mark(link.element, "state", robot.closed ? "ended" : robot.status.state);
    });
  }

  #link(robot) {
    const badge = new StateBadge();
    const element = h("a", { href: `#robot-${robot.session}` }, h("span", { class: "who" }, `#${robot.session}`), badge.element);
    return { element, badge };
  }
}
