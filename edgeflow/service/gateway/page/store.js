// What the page knows: sessions with a minute of history each, the service, and the log. All of it is bounded.

import { known } from "./words.js";

export const WINDOW_MS = 60_000; // of latency, and of what charts show
const RATE_MS = 10_000; // over which rates and percentiles are taken
const ANSWERS = 4096;
const BATCHES = 300;
const EVENTS = 100;
const LOG_LINES = 500;
const CHUNKS = 256;
const EXECUTED = 1024;
const OUTCOMES = 40;
const SEAMS = 16;
const DIMENSIONS = 32;
const TEXT = 400; // characters of a text of a kept line
const GONE_MS = 3000; // clients that open a session per task leave the page empty for a moment only
const STATUS = ["mode", "pace", "epoch", "instruction", "state", "reason", "since", "operator", "forecast", "limit_ms", "execution", "warnings"];

/** Rows of numbers, the newest `capacity` of them. The first column is a time. */
export class Series {
  constructor(columns, capacity) {
    this.columns = Array.from({ length: columns }, () => new Float64Array(capacity));
    this.capacity = capacity;
    this.start = 0;
    this.length = 0;
  }

  push(...values) {
    const at = (this.start + this.length) % this.capacity;
    values.forEach((value, column) => (this.columns[column][at] = value ?? NaN));
    if (this.length < this.capacity) this.length++;
    else this.start = (this.start + 1) % this.capacity;
  }

  get(column, index) {
    return this.columns[column][(this.start + index) % this.capacity];
  }

  /** Index of the first row after a time. */
  after(time) {
    let low = 0;
    for (let high = this.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.get(0, middle) > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

const list = (value) => (Array.isArray(value) ? value : []);

/** A line that is kept: long texts would fill the memory. */
function cut(line) {
  const short = (value) => (typeof value === "string" ? value.slice(0, TEXT) : value);
  const all = (values) => Object.fromEntries(Object.entries(values).slice(0, 40).map(([key, value]) => [short(key), short(value)]));
  return line.values ? { ...all(line), values: all(line.values) } : all(line);
}

/** A session: facts, status, and a minute of answers. */
export class Robot {
  constructor(facts, status, now) {
    this.session = facts.session;
    this.facts = facts;
    this.status = { state: "waiting", since: now, ...status };
    this.answers = new Series(3, ANSWERS); // time, latency, passes
    this.batches = new Series(5, BATCHES); // time, answers, frames, median and greatest latency
    this.states = [{ time: this.status.since || now, state: this.status.state }];
    this.events = [];
    this.outcomes = new Map();
    this.seams = new Map();
    this.seen = now;
    this.closed = null;
    this.figures = null;
    this.forget();
  }

  /** The age that an action may have, in ms: as the robot asked, or as the service chose; null for any. */
  get limit() {
    return this.facts.max_age_ms ?? this.status.limit_ms ?? null;
  }

  /** Time between the rows of a chunk in ms; for single actions, between actions. */
  get step() {
    return this.facts.step_ms || this.facts.period_ms || 50;
  }

  /** Drop what only the large view shows. */
  forget() {
    this.chunks = [];
    this.executed = [];
    this.state = [];
  }

  apply(time, update, since) {
    for (const key of STATUS) if (key in update) this.status[key] = update[key];
    const state = this.status.state;
    if (state !== this.states.at(-1).state) {
      this.states.push({ time: Math.max(this.states.at(-1).time, this.status.since || time), state });
    }
    while (this.states.length > 2 && (this.states.length > 200 || this.states[1].time < time - WINDOW_MS)) this.states.shift();
    this.#answers(time, list(update.answers), Math.min(1000, Math.max(1, time - since)), update.frames);
    const outcomes = list(update.outcomes);
    const acted = list(update.answers).length;
    if (acted && !outcomes.some(([disposition]) => disposition === "acted")) count(this.outcomes, "acted", acted, OUTCOMES);
    for (const [disposition, reason, n] of outcomes) count(this.outcomes, `${disposition} ${reason ?? ""}`.trim(), n, OUTCOMES);
    this.events.push(...list(update.events).map(cut));
    if (this.events.length > EVENTS) this.events.splice(0, this.events.length - EVENTS);
    if (update.detail) this.#detail(time, update.detail);
  }

  /** Answers have no time each: they are spread over the time of their batch. */
  #answers(time, answers, span, frames) {
    const sorted = [];
    answers.forEach(([, latency, passes, seam], index) => {
      this.answers.push(time - (span * (answers.length - 1 - index)) / answers.length, latency, passes);
      if (seam) count(this.seams, seam, 1, SEAMS);
      if (known(latency)) sorted.push(latency);
    });
    sorted.sort((a, b) => a - b);
    this.batches.push(time, answers.length, frames ?? 0, sorted[sorted.length >> 1], sorted.at(-1));
    this.figures = null;
  }

  #detail(time, detail) {
    for (const chunk of list(detail.chunks)) {
      const values = list(chunk.values).map((row) => Float32Array.from(list(row).slice(0, DIMENSIONS)));
      if (values.length && known(chunk.time)) this.#chunk(chunk.seq, chunk.time, chunk.step_ms || this.step, values);
    }
    const old = time - WINDOW_MS;
    while (this.chunks.length > CHUNKS || this.chunks[0]?.time < old) this.chunks.shift();
    for (const [at, seq, row] of list(detail.executed)) {
      const values = this.chunks.findLast((chunk) => chunk.seq === seq)?.values[row];
      if (values) this.executed.push({ time: at, seq, row, values });
    }
    while (this.executed.length > EXECUTED || this.executed[0]?.time < old) this.executed.shift();
    if (detail.state) this.state = list(detail.state).slice(0, 256);
  }

  /** Single actions are in force until the next one. */
  #chunk(seq, time, step, values) {
    const last = this.chunks.at(-1);
    if (last?.values.length === 1) last.until = last.time + Math.min(Math.max(0, time - last.time), 1000);
    this.chunks.push({ seq, time, step, values, until: time + step * values.length });
  }

  /** The rate between the first and the last answer, which no window cuts; nothing once answers stay away. */
  #steady(from, end) {
    const [first, last] = [this.answers.after(from), this.answers.length - 1];
    const period = (this.answers.get(0, last) - this.answers.get(0, first)) / (last - first);
    return last - first >= 4 && end - this.answers.get(0, last) < 2 * period ? 1000 / period : undefined;
  }

  /** Rates and percentiles of the last seconds up to `end`, the time of the last batch; from: where counting may begin. */
  measure(from, end) {
    if (this.figures) return this.figures;
    const [first, last] = [this.batches.after(from), this.batches.length];
    let answers = 0;
    let frames = 0;
    for (let i = first; i < last; i++) {
      answers += this.batches.get(1, i);
      frames += this.batches.get(2, i);
    }
    const seconds = (end - from) / 1000;
    const latencies = [];
    let passes = 0;
    for (let i = this.answers.after(from); i < this.answers.length; i++) {
      const latency = this.answers.get(1, i);
      if (!Number.isNaN(latency)) latencies.push(latency);
      passes += this.answers.get(2, i) || 0;
    }
    latencies.sort((a, b) => a - b);
    const at = (share) => latencies[Math.min(latencies.length - 1, Math.floor(share * latencies.length))];
    const enough = seconds >= 1.5;
    this.figures = {
      rate: enough ? (this.#steady(from, end) ?? answers / seconds) : undefined,
      frames: enough ? frames / seconds : undefined,
      p50: at(0.5),
      p99: at(0.99),
      passes: latencies.length ? passes / latencies.length : undefined,
    };
    return this.figures;
  }
}

function count(counts, key, n, most) {
  const name = counts.has(key) || counts.size < most ? key : "other";
  counts.set(name, (counts.get(name) ?? 0) + n);
}

/** Everything that the panels show. */
export class Store {
  constructor() {
    this.hello = null;
    this.sessions = new Map();
    this.ended = null; // the last session that was closed
    this.service = null;
    this.models = [];
    this.log = [];
    this.connection = "connecting";
    this.shown = null;
    this.offset = 0; // the service's clock less ours
    this.times = new Series(1, BATCHES);
    this.begun = 0;
    this.heard = 0; // when the last event arrived, on our clock
  }

  /** The robot that the large view shows. */
  get focus() {
    return this.shown === null ? null : (this.sessions.get(this.shown) ?? null);
  }

  get live() {
    return this.connection === "live";
  }

  /** Now, on the service's clock; once the connection is lost, the time of the last news. */
  now() {
    return (this.connection === "lost" ? this.heard : Date.now()) + this.offset;
  }

  /** Time of the newest batch, and the oldest batch from which rates are taken. */
  window(robot) {
    const end = this.times.length ? this.times.get(0, this.times.length - 1) : 0;
    let from = Math.max(this.begun, robot.seen);
    const first = this.times.after(end - RATE_MS - 1);
    if (first < this.times.length) from = Math.max(from, this.times.get(0, first));
    return [from, end];
  }

  figures(robot) {
    return robot.measure(...this.window(robot));
  }

  take(type, value) {
    this.heard = Date.now();
    if (known(value?.time) && type !== "log") this.offset = value.time - Date.now();
    switch (type) {
      case "hello":
        this.#hello(value);
        break;
      case "opened":
        this.sessions.set(value.session, new Robot(value, value.status, this.now()));
        break;
      case "closed":
        this.#closed(value);
        break;
      case "log":
        this.log.push(cut(value));
        if (this.log.length > LOG_LINES) this.log.splice(0, this.log.length - LOG_LINES);
        break;
      case "models":
        this.models = list(value);
        break;
      case "service":
        this.service = value;
        break;
      case "update":
        this.#update(value);
    }
  }

  /** Everything anew; robots that are still there keep their history. */
  #hello(value) {
    const before = this.sessions;
    this.hello = value;
    this.service = value.service ?? null;
    this.models = list(value.models);
    this.log = list(value.log).slice(-LOG_LINES).map(cut);
    this.sessions = new Map();
    for (const facts of list(value.sessions)) {
      const old = before.get(facts.session);
      const kept = old && !old.closed && old.facts.opened === facts.opened ? old : null;
      if (kept) {
        kept.facts = facts;
        kept.apply(value.time, facts.status ?? {}, value.time);
      }
      this.sessions.set(facts.session, kept ?? new Robot(facts, facts.status, value.time));
    }
    this.#count(value.time);
  }

  /** Rates are counted from here: batches before are missing. */
  #count(time) {
    this.begun = time;
    this.times.push(time);
  }

  #update(value) {
    const since = this.times.length ? this.times.get(0, this.times.length - 1) : value.time - 250;
    for (const [name, update] of Object.entries(value.sessions ?? {})) {
      this.sessions.get(Number(name))?.apply(value.time, update, since);
    }
    if (value.lost) this.#count(value.time);
    else this.times.push(value.time);
    for (const robot of this.sessions.values()) robot.figures = null;
  }

  #closed(value) {
    const robot = this.sessions.get(value.session);
    if (!robot) return;
    robot.closed = value;
    this.ended = value;
    if (this.shown !== value.session) this.sessions.delete(value.session);
  }

  /** Show one robot large, or none. */
  show(session) {
    if (this.shown === session) return;
    const old = this.focus;
    old?.forget();
    if (old?.closed) this.sessions.delete(old.session);
    this.shown = session;
  }

  /** True when no robot is there, and did not just leave. */
  get empty() {
    const left = this.ended?.time ?? 0;
    return this.open().length === 0 && this.now() - left > GONE_MS;
  }

  /** Sessions that are open. */
  open() {
    return [...this.sessions.values()].filter((robot) => !robot.closed);
  }
}
