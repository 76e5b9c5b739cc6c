// Pictures of robots' cameras: only those in view, the next one only after the last arrived.

import { h, mark } from "./dom.js";

const MOST = 3; // requests in flight: a browser has six connections per host, and a HOLD must find one free
const MANY = 6; // robots, above which pictures come once per second

const visible = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.inView = isIntersecting;
});

/** The pictures of a page. */
export class Pictures {
  constructor(api, store) {
    this.api = api;
    this.store = store;
    this.all = new Set();
    this.flying = 0;
    setInterval(() => this.#turn(), 100);
  }

  /** A new picture of a camera; its `element` shows it until `ended`. */
  of(robot, camera, large = false) {
    const picture = new Picture(this, robot, camera, large);
    this.all.add(picture);
    return picture;
  }

  get period() {
    return this.store.sessions.size > MANY ? 1000 : 500;
  }

  /** Ask for those that waited longest. */
  #turn() {
    if (document.hidden || !this.store.live) return;
    const now = performance.now();
    const due = [...this.all].filter((each) => each.due(now, this.period)).sort((a, b) => a.asked - b.asked);
    for (const picture of due.slice(0, MOST - this.flying)) {
      this.flying++;
      picture.load(now).finally(() => this.flying--);
    }
  }
}

class Picture {
  constructor(pictures, robot, camera, large) {
    this.pictures = pictures;
    this.robot = robot;
    this.camera = camera;
    const { name, width, height } = robot.facts.cameras[camera];
    this.image = h("canvas", { hidden: true, ariaHidden: "true" });
    this.note = h("span", { class: "no-picture", ariaHidden: "true" }, "no picture");
    this.element = h("div", { class: "picture", data: { large } }, this.image, this.note);
    if (width > 0 && height > 0) this.element.style.aspectRatio = `${width} / ${height}`;
    if (large) {
      this.image.role = "img";
      this.image.ariaLabel = `Camera ${String(name).slice(0, 60)} of robot ${robot.session}`;
      this.image.ariaHidden = null;
    }
    this.asked = -Infinity;
    this.flying = null;
    this.tag = "";
    visible.observe(this.element);
  }

  due(now, period) {
    return !this.flying && this.element.inView && !this.robot.closed && now - this.asked >= period;
  }

  async load(now) {
    this.asked = now;
    this.flying = new AbortController();
    const timer = setTimeout(() => this.flying?.abort(), 5000);
    try {
      const path = `events/images/${this.robot.session}/${this.camera}`;
      const headers = this.tag ? { "if-none-match": this.tag } : {};
      const answer = await this.pictures.api.fetch(path, { headers, signal: this.flying.signal, priority: "low" });
      if (answer.status === 200) await this.#show(await answer.blob(), answer.headers.get("etag"));
      else if (answer.status === 404) this.asked = now + 10_000;
    } catch {
      this.asked = now + 2000; // the connection is watched elsewhere
    } finally {
      clearTimeout(timer);
      this.flying = null;
    }
  }

  /** Draw it: of pictures with addresses, browsers keep the pixels for long, and an hour has thousands. */
  async #show(blob, tag) {
    const bitmap = await createImageBitmap(blob);
    if (!this.pictures.all.has(this)) return bitmap.close();
    this.tag = tag ?? "";
    this.image.getContext("bitmaprenderer").transferFromImageBitmap(bitmap);
    mark(this.element, "shown", true);
    this.image.hidden = false;
    this.note.hidden = true;
  }

  /** Give everything back. */
  ended() {
    this.pictures.all.delete(this);
    visible.unobserve(this.element);
    this.flying?.abort();
  }
}
