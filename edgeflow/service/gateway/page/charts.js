// Charts on canvas: latency against its limit, and commanded chunks against what was executed.

import { WINDOW_MS } from "./store.js";
import { number, span } from "./words.js";

const NAMES = ["ink", "muted", "line", "latency", "limit", "hold", "stop", "executed", "commanded"];
let colours = null;

/** Colours of the theme in force; read again after `forgetColours`. */
function theme() {
  if (!colours) {
    const probe = document.body.appendChild(document.createElement("i"));
    const style = getComputedStyle(probe);
    colours = { font: style.fontFamily };
    for (const name of NAMES) {
      probe.style.color = `var(--${name})`;
      colours[name] = style.color;
    }
    probe.remove();
  }
  return colours;
}

export function forgetColours() {
  colours = null;
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) target.sizes = [contentRect.width, contentRect.height];
});

/** A canvas whose drawing fits its size on the screen. */
export class Canvas {
  constructor(node) {
    this.node = node;
    this.context = node.getContext("2d");
    sizes.observe(node);
  }

  /** The context, cleared, in CSS pixels; null while the canvas has no size. */
  begin() {
    const [width, height] = this.node.sizes ?? [this.node.clientWidth, this.node.clientHeight];
    if (width < 2 || height < 2) return null;
    const scale = Math.min(3, window.devicePixelRatio || 1);
    const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.node.width !== across || this.node.height !== down) [this.node.width, this.node.height] = [across, down];
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.clearRect(0, 0, width, height);
    return { context: this.context, width, height };
  }

  ended() {
    sizes.unobserve(this.node);
  }
}

/** A step of 1, 2 or 5 times a power of ten, so that `range` has about `parts` of them. */
function niceStep(range, parts) {
  const rough = range / parts || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  return step * power;
}

function line(context, from, to, colour, dash = []) {
  context.strokeStyle = colour;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
  context.setLineDash([]);
}

/** Shade the times of HOLD and STOP. */
function shade(context, robot, now, x, top, height, alpha) {
  robot.states.forEach(({ time, state }, index) => {
    if (state !== "hold" && state !== "stop") return;
    const [from, to] = [x(time), x(robot.states[index + 1]?.time ?? now)];
    if (to <= x(now - WINDOW_MS)) return;
    context.globalAlpha = alpha;
    context.fillStyle = theme()[state];
    context.fillRect(Math.max(from, x(now - WINDOW_MS)), top, Math.max(1, to - Math.max(from, x(now - WINDOW_MS))), height);
    context.globalAlpha = 1;
  });
}

/** The height of a latency axis: the limit with room above it, or what was measured. */
function ceiling(robot, now) {
  let most = 0;
  for (let i = robot.batches.after(now - WINDOW_MS); i < robot.batches.length; i++) most = Math.max(most, robot.batches.get(4, i) || 0);
  const { limit } = robot;
  return limit ? Math.max(limit * 1.15, Math.min(most * 1.1, limit * 2)) : most * 1.25 || 1;
}

/** A minute of latency in the space of a line of text: medians of batches, up to the limit. */
export function drawSpark(canvas, robot, now) {
  const surface = canvas.begin();
  if (!surface) return;
  const { context, width, height } = surface;
  const { latency, limit, line: rule } = theme();
  const top = ceiling(robot, now);
  const x = (time) => width * (1 - (now - time) / WINDOW_MS);
  const y = (ms) => height - 1 - (height - 3) * Math.min(1, ms / top);
  shade(context, robot, now, x, 0, height, 0.22);
  context.lineWidth = 1;
  line(context, [0, height - 0.5], [width, height - 0.5], rule);
  if (robot.limit) line(context, [0, y(robot.limit)], [width, y(robot.limit)], limit, [4, 3]);
  const batches = robot.batches;
  context.strokeStyle = latency;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  let last = -Infinity;
  for (let i = batches.after(now - WINDOW_MS); i < batches.length; i++) {
    const [time, value] = [batches.get(0, i), batches.get(3, i)];
    if (Number.isNaN(value)) continue;
    if (time - last > 1500) context.moveTo(x(time), y(value));
    else context.lineTo(x(time), y(value));
    last = time;
  }
  context.stroke();
}

/** A minute of latency, every answer a dot, with axes. */
export function drawLatency(canvas, robot, now) {
  const surface = canvas.begin();
  if (!surface) return;
  const { context, width, height } = surface;
  const { ink, muted, line: rule, latency, limit, font } = theme();
  const [left, right, top, bottom] = [46, 12, 10, 26];
  const most = ceiling(robot, now);
  const x = (time) => left + (width - left - right) * (1 - (now - time) / WINDOW_MS);
  const y = (ms) => height - bottom - (height - top - bottom) * Math.min(1, ms / most);
  context.font = `12px ${font}`;
  context.lineWidth = 1;
  shade(context, robot, now, x, top, height - top - bottom, 0.16);
  context.textAlign = "right";
  context.textBaseline = "middle";
  const step = niceStep(most, height > 150 ? 5 : 3);
  for (let ms = 0; ms <= most; ms += step) {
    line(context, [left, Math.round(y(ms)) + 0.5], [width - right, Math.round(y(ms)) + 0.5], rule);
    context.fillStyle = muted;
    context.fillText(number(ms).replace(/\.0+$/, ""), left - 8, y(ms));
  }
  context.textBaseline = "top";
  const each = width > 420 ? 10 : 20;
  for (let s = 60; s >= 0; s -= each) {
    context.textAlign = s ? "center" : "right";
    context.fillStyle = muted;
    context.fillText(s ? `−${s} s` : "now", x(now - 1000 * s), height - bottom + 8);
  }
  const answers = robot.answers;
  context.fillStyle = latency;
  for (let i = answers.after(now - WINDOW_MS); i < answers.length; i++) {
    const value = answers.get(1, i);
    if (!Number.isNaN(value)) context.fillRect(x(answers.get(0, i)) - 1, y(value) - 1, 2.2, 2.2);
  }
  const at = robot.limit;
  if (at) {
    context.lineWidth = 1.5;
    line(context, [left, y(at)], [width - right, y(at)], limit, [6, 4]);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillStyle = ink;
    context.fillText(`limit ${span(at)}`, left + 6, y(at) - 3);
  }
}

/** Least and greatest value of a dimension in what is shown, with a margin. */
function extent(robot, dimension, from) {
  let [low, high] = [Infinity, -Infinity];
  const see = (value) => {
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const chunk of robot.chunks) if (chunk.until >= from) for (const row of chunk.values) see(row[dimension]);
  for (const { time, values } of robot.executed) if (time >= from) see(values[dimension]);
  if (!(low <= high)) return [-1, 1];
  const margin = Math.max((high - low) * 0.12, Math.abs(high) * 0.02, 1e-6);
  return [low - margin, high + margin];
}

/** The times that chunk charts show, in ms from now: enough for the newest chunk and those before it. */
export function chunkWindow(robot) {
  const { horizon } = robot.facts;
  const length = Math.max(1, horizon) * robot.step;
  const ahead = Math.min(20_000, Math.max(horizon > 1 ? length : 0, 250));
  return [-Math.min(30_000, Math.max(2.2 * length, horizon > 1 ? 2000 : 5000)), ahead];
}

/** Chunks as lines through their rows; the newest one stands out. */
function drawRows(context, chunks, from, dimension, x, y) {
  for (const chunk of chunks) {
    if (chunk.until < from) continue;
    const newest = chunk === chunks.at(-1);
    context.globalAlpha = newest ? 1 : 0.38;
    context.lineWidth = newest ? 2.4 : 1.3;
    context.beginPath();
    chunk.values.forEach((row, at) => context[at ? "lineTo" : "moveTo"](x(chunk.time + at * chunk.step), y(row[dimension])));
    context.stroke();
  }
}

/** Single actions as one line of steps: each is in force until the next one. */
function drawSteps(context, chunks, from, dimension, x, y) {
  context.lineWidth = 1.8;
  context.beginPath();
  let until = -Infinity;
  for (const chunk of chunks) {
    if (chunk.until < from) continue;
    const level = y(chunk.values[0][dimension]);
    context[chunk.time - until < 1 ? "lineTo" : "moveTo"](x(chunk.time), level);
    context.lineTo(x(chunk.until), level);
    until = chunk.until;
  }
  context.stroke();
}

/** One dimension of the actions: commanded chunks as lines, executed rows as dots, and now. */
export function drawChunk(canvas, robot, dimension, now) {
  const surface = canvas.begin();
  if (!surface) return;
  const { context, width, height } = surface;
  const { muted, line: rule, commanded, executed, ink, font } = theme();
  const [left, right, top, bottom] = [44, 10, 6, 20];
  const [past, ahead] = chunkWindow(robot);
  const [low, high] = extent(robot, dimension, now + past);
  const x = (time) => left + ((width - left - right) * (time - now - past)) / (ahead - past);
  const y = (value) => top + ((height - top - bottom) * (high - value)) / (high - low);
  context.font = `11px ${font}`;
  context.lineWidth = 1;
  axes(context, { left, right, top, bottom, width, height, low, high, past, ahead, x, y, now, muted, rule });
  context.save();
  context.beginPath();
  context.rect(left, 0, width - left - right, height - bottom + 1);
  context.clip();
  context.strokeStyle = commanded;
  const draw = robot.facts.horizon > 1 ? drawRows : drawSteps;
  draw(context, robot.chunks, now + past, dimension, x, y);
  context.globalAlpha = 1;
  context.fillStyle = executed;
  for (const { time, values } of robot.executed) {
    if (time < now + past) continue;
    context.beginPath();
    context.arc(x(time), y(values[dimension]), 2.2, 0, 7);
    context.fill();
  }
  context.restore();
  line(context, [x(now), top], [x(now), height - bottom], ink, [2, 3]);
}

function axes(context, { left, right, bottom, width, height, low, high, past, ahead, x, y, now, muted, rule }) {
  context.fillStyle = muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const step = niceStep(high - low, 4);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    line(context, [left, Math.round(y(value)) + 0.5], [width - right, Math.round(y(value)) + 0.5], rule);
    const text = digits > 4 ? value.toExponential(0) : (Math.abs(value) < step / 2 ? 0 : value).toFixed(digits);
    context.fillText(text.replace("-", "−"), left - 6, y(value));
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  const each = niceStep(ahead - past, Math.max(2, (width - left - right) / 72));
  const last = Math.floor(ahead / each) * each;
  for (let ms = Math.ceil(past / each) * each; ms <= last; ms += each) {
    const text = ms === 0 ? "now" : `${ms > 0 ? "+" : "−"}${Math.abs(ms)}`;
    const half = context.measureText(text).width / 2;
    const at = Math.min(width - half, Math.max(left + half - 8, x(now + ms)));
    context.fillText(text, at, height - bottom + 6);
  }
}
