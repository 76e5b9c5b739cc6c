// The service itself: worker, passes against the forecast, room on the device, chat, models, clients, log.

import { foreign, h, mark, match, outside, put, show } from "./dom.js";
import { clock, count, exact, known, percent, rate } from "./words.js";

const LINES = 100; // of the log that are shown
const WORKER = { ready: ["good", "Ready"], starting: ["busy", "Starting"], lost: ["bad", "Lost"] };
const STANDBY = { ready: "another one in reserve", preparing: "reserve is preparing", off: "no reserve" };

/** A tile: title, large text, small text, perhaps a bar. */
class Tile {
  constructor(title) {
    this.value = foreign("p", "value");
    this.note = foreign("p", "note");
    this.element = h("div", { class: "tile" }, h("h2", {}, title), this.value, this.note);
  }

  update(value, note, tone = "") {
    put(this.value, outside(value, 80));
    put(this.note, outside(note, 160));
    mark(this.element, "tone", tone);
  }
}

/** A bar of shares, with its meaning as text beside it. */
class Bar {
  constructor() {
    this.busy = h("i", { class: "busy" });
    this.left = h("i", { class: "left" });
    this.element = h("div", { class: "share", ariaHidden: "true" }, this.busy, this.left);
  }

  update(busy, left) {
    const used = Math.min(1, Math.max(0, busy || 0));
    this.busy.style.width = `${100 * used}%`;
    this.left.style.width = `${100 * Math.min(1 - used, Math.max(0, left || 0))}%`;
  }
}

/** The line of tiles on top. */
export class Service {
  constructor(root, { store }) {
    this.store = store;
    this.root = root;
    this.worker = new Tile("Worker");
    this.passes = new Tile("Pass time");
    this.device = new Tile("Device");
    this.chat = new Tile("Chat");
    this.recording = new Tile("Recording");
    this.bar = new Bar();
    this.device.element.insertBefore(this.bar.element, this.device.note);
    this.warnings = h("ul", { class: "warnings" });
    this.lines = new Map();
    const tiles = [this.worker, this.passes, this.device, this.chat, this.recording].map((tile) => tile.element);
    root.append(h("div", { class: "tiles" }, ...tiles), this.warnings);
  }

  update() {
    const service = this.store.service;
    show(this.root, Boolean(service));
    if (!service) return;
    const { worker, standby, passes, share, share_left: left, chat, recording } = service;
    const [tone, word] = WORKER[worker?.state] ?? ["", worker?.state ?? "unknown"];
    const restarts = worker?.restarts ? ` · ${count(worker.restarts, "restart")}` : "";
    this.worker.update(word, [worker?.device, STANDBY[standby] ?? standby].filter(Boolean).join(" · ") + restarts, tone);
    this.#passes(passes);
    this.bar.update(share, left);
    show(this.bar.element, known(share) || known(left));
    if (known(left)) {
      const room = left > 0.005;
      const note = [room ? "room for more" : "no room for more", known(share) ? `${percent(share)} busy` : ""];
      this.device.update(room ? `${percent(left)} free` : "Full", note.filter(Boolean).join(" · "), room ? "" : "busy");
    } else this.device.update(known(share) ? `${percent(share)} busy` : "–", "");
    show(this.chat.element, Boolean(chat));
    if (chat) this.chat.update(chat.running ? "Answering" : "Idle", [chat.queue ? `${chat.queue} of ${chat.most} waiting` : "nobody waits", chat.model].filter(Boolean).join(" · "));
    show(this.recording.element, Boolean(recording));
    if (recording) this.recording.update("On", recording);
    const warnings = (service.warnings ?? []).slice(0, 20);
    match(this.warnings, this.lines, warnings.map((text) => outside(text)), (text) => text, (text) => Object.assign(foreign("li"), { textContent: text }));
    show(this.warnings, warnings.length > 0);
  }

  #passes(passes) {
    const forecast = passes?.forecast_ms > 0 ? `forecast ${exact(passes.forecast_ms)}` : "";
    if (!(passes?.ms > 0)) return this.passes.update("None now", forecast);
    const late = passes.forecast_ms > 0 && passes.ms > 1.5 * passes.forecast_ms;
    return this.passes.update(exact(passes.ms), [forecast, `${rate(passes.per_s)} per s`].filter(Boolean).join(" · "), late ? "busy" : "");
  }
}

/** A model of the list: what it needs, and which clients can connect. */
class ModelCard {
  constructor() {
    this.name = foreign("h4");
    this.facts = h("dl");
    this.element = h("article", { class: "model" }, this.name, this.facts);
    this.text = "";
  }

  update(model) {
    const text = JSON.stringify(model);
    if (text === this.text) return;
    this.text = text;
    put(this.name, outside(model.id, 120));
    this.facts.replaceChildren(...rowsOf(model).flatMap(([term, value]) => {
      const shown = foreign("dd");
      put(shown, outside(value));
      return [h("dt", {}, term), shown];
    }));
  }
}

function rowsOf(model) {
  const cameras = (model.cameras ?? []).map(({ name, width, height }) => name + (width ? ` ${width}×${height}` : ""));
  const state = (model.state ?? []).map(({ name, size }) => (size ? `${name} (${size})` : name));
  const actions = (model.actions ?? []).map(({ name, unit }) => (unit ? `${name} ${unit}` : name));
  const horizon = model.horizon > 1 ? `${model.horizon} per answer${model.step_ms ? `, ${model.step_ms} ms apart` : ""}` : "";
  const rows = [
    ["Kind", [model.family, model.mode && `mode ${model.mode}`].filter(Boolean).join(", ")],
    ["Cameras", cameras.join(", ")],
    ["State", model.cameras ? state.join(", ") || "none needed" : ""],
    ["Actions", [actions.join(", "), horizon].filter(Boolean).join("; ")],
    ["Context", model.max_model_len ? `${model.max_model_len} tokens` : ""],
  ];
  for (const [name, client] of Object.entries(model.clients ?? {}).slice(0, 8)) {
    rows.push([client.clients ?? name, client.fits === false ? "needs names mapped" : client.address]);
  }
  return rows.filter(([, value]) => value);
}

/** Models and the log, below the robots. */
export class More {
  constructor(root, { store }) {
    this.store = store;
    this.root = root;
    this.models = h("div", { class: "models" });
    this.cards = new Map();
    this.log = h("tbody");
    this.lines = new Map();
    this.numbers = new WeakMap();
    this.next = 0;
    this.modelsBox = h("details", { class: "box" }, h("summary", {}, h("h2", {}, "Models and clients")), this.models);
    const head = h("thead", {}, h("tr", {}, ...["Time", "Event", "Values"].map((name) => h("th", { scope: "col" }, name))));
    const table = h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: "Log" }, h("table", { class: "log" }, head, this.log));
    this.logBox = h("details", { class: "box" }, h("summary", {}, h("h2", {}, "Log")), table);
    this.logBox.addEventListener("toggle", () => this.update());
    root.append(this.modelsBox, this.logBox);
  }

  update() {
    show(this.root, Boolean(this.store.hello));
    match(this.models, this.cards, this.store.models.slice(0, 32), (model) => model.id, () => new ModelCard(), (card, model) => card.update(model));
    if (!this.logBox.open) return;
    const newest = this.store.log.slice(-LINES).reverse();
    match(this.log, this.lines, newest, (line) => this.#number(line), (line) => lineOf(line));
  }

  #number(line) {
    if (!this.numbers.has(line)) this.numbers.set(line, this.next++);
    return this.numbers.get(line);
  }
}

function lineOf({ time, event, values }) {
  const [name, rest] = [foreign("td"), foreign("td", "values")];
  put(name, outside(event, 60));
  put(rest, outside(Object.entries(values ?? {}).map(([key, value]) => `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`).join("  ")));
  return h("tr", {}, h("td", { class: "time" }, clock(time)), name, rest);
}
