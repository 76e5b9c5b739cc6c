// The page: its parts, what is shown, and at most one drawing per frame of the screen.

import { Cards } from "./cards.js";
import { forgetColours } from "./charts.js";
import { h, mark, match, outside, put, show } from "./dom.js";
import { Focus } from "./focus.js";
import { Pictures } from "./pictures.js";
import { More, Service } from "./service.js";
import { Store } from "./store.js";
import { Api, EventStream } from "./stream.js";
import { Token } from "./token.js";
import { Operate } from "./operate.js";
import { Ask } from "./ask.js";
import { Connect } from "./connect.js";
import { clock, endOf, lasting, meaning, stateOf } from "./words.js";

const THEMES = ["system", "light", "dark"];
const QUIET_MS = 3000; // between announcements
const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.store = new Store();
    this.api = new Api(() => this.token.headers());
    this.token = new Token(byId("token"));
    this.pictures = new Pictures(this.api, this.store);
    const both = { api: this.api, store: this.store, pictures: this.pictures };
    this.cards = new Cards(byId("cards"), both);
    this.focus = new Focus(byId("focus"), both);
    this.parts = [
      new Service(byId("service"), both),
      new More(byId("more"), both),
      new Operate(this.focus.operate, both),
      new Ask(this.focus.ask, both),
      new Connect(byId("connect"), both),
      this.token,
    ];
    this.counts = new Map();
    this.news = [];
    this.said = 0;
    this.follow = null;
    this.wanted = 0;
    this.stream = new EventStream(this.api, {
      event: (type, value) => this.#event(type, value),
      state: (name, error) => this.#connection(name, error),
    });
    this.#listen();
    this.#route();
    this.stream.open();
  }

  #listen() {
    addEventListener("hashchange", () => this.#route(true));
    addEventListener("resize", () => this.draw());
    document.addEventListener("visibilitychange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#recolour());
    byId("again").addEventListener("click", () => this.stream.open());
    byId("trouble").addEventListener("change", ({ target }) => {
      this.cards.trouble = target.checked;
      this.draw();
    });
    this.theme = THEMES.indexOf(localStorage.getItem("edgeflow-theme") ?? "system");
    byId("theme").addEventListener("click", () => this.#theme(this.theme + 1));
    this.#theme(this.theme);
    setInterval(() => this.draw(), 1000); // ages go on without events
    setInterval(() => this.#announce(), 1000);
  }

  #theme(index) {
    this.theme = Math.max(0, index) % THEMES.length;
    const name = THEMES[this.theme];
    localStorage.setItem("edgeflow-theme", name);
    mark(document.documentElement, "theme", name);
    put(byId("theme"), `Theme: ${name}`);
    this.#recolour();
  }

  #recolour() {
    forgetColours();
    this.draw();
  }

  /** One frame of the screen shows everything that came before it; a hidden tab shows nothing. */
  draw() {
    if (this.wanted || document.hidden) return;
    this.wanted = requestAnimationFrame(() => {
      this.wanted = 0;
      this.#render();
    });
  }

  #event(type, value) {
    this.store.take(type, value);
    if (type === "update") this.#notice(value);
    if (type === "hello" || type === "opened" || (type === "closed" && this.store.shown !== null)) this.#route();
    this.#title();
    this.draw();
  }

  async #connection(state, error = null) {
    const before = this.store.connection;
    this.store.connection = state;
    if (state === "lost" && before === "live") this.news.push("The connection to the service was lost");
    if (state === "live" && before === "lost") this.news.push("Connected again");
    this.#title();
    this.draw();
    if (state !== "token") return;
    await (error.status === 403 || this.token.headers().authorization ? this.token.forget(error.text) : this.token.ask("This service shows its robots with an access token."));
    this.stream.open();
  }

  /** What the address asks for; one robot alone is shown at once. chosen: by a person, whose keyboard follows. */
  #route(chosen = false) {
    const match = /^#robot-(\d+)$/.exec(location.hash);
    const open = this.store.open();
    let wanted = match ? Number(match[1]) : null;
    if (wanted === null && location.hash !== "#robots" && open.length === 1) wanted = open[0].session;
    if (wanted !== null && this.store.hello && !this.store.sessions.has(wanted)) wanted = open.length === 1 ? open[0].session : null;
    const before = this.store.shown;
    if (wanted === before) return;
    this.store.show(wanted);
    if (chosen) this.follow = () => (wanted === null ? this.cards.focus(before) : this.focus.title?.focus());
    this.stream.open(wanted === null ? [] : [wanted]);
    scrollTo({ top: 0 });
    this.draw();
  }

  #render() {
    const { store } = this;
    const robots = store.open();
    const focus = store.focus;
    const empty = Boolean(store.hello) && store.empty && !focus;
    document.body.classList.toggle("empty", empty);
    show(byId("robots"), robots.length > 0 && !focus);
    show(byId("connect"), Boolean(store.hello));
    this.#header(robots);
    const last = store.ended;
    show(byId("ended"), Boolean(store.hello) && !robots.length && !focus && Boolean(last));
    if (last) put(byId("ended"), outside(`Robot ${last.session} left at ${clock(last.time)}: ${endOf(last)}.`));
    this.#lost();
    if (!focus) this.cards.update();
    this.focus.update();
    for (const part of this.parts) part.update();
    this.follow?.();
    this.follow = null;
  }

  #header(robots) {
    const { connection, hello, live } = this.store;
    const words = { live: "Live", connecting: "Connecting", lost: "Not live", token: "Needs a token" };
    put(byId("connection"), words[connection]);
    mark(byId("connection"), "state", connection);
    put(byId("version"), hello?.version ? String(hello.version).slice(0, 24) : "");
    if (hello?.tokens) show(byId("docs"), false); // a link carries no token
    const states = ["stop", "hold", "waiting", "parked", "acting"];
    const found = states.map((state) => [state, robots.filter((robot) => robot.status.state === state).length]).filter(([, n]) => n);
    match(byId("counts"), this.counts, live ? found : [], ([state]) => state, ([state]) => {
      const text = h("span");
      return { text, element: h("span", { class: "state", data: { state } }, h("span", { class: "shape", ariaHidden: "true" }), text) };
    }, ({ text }, [state, n]) => put(text, `${n} ${n > 0 && state !== "hold" && state !== "stop" ? stateOf(state).word.toLowerCase() : stateOf(state).word}`));
  }

  #lost() {
    const { connection, hello } = this.store;
    const lost = connection === "lost";
    document.body.classList.toggle("stale", Boolean(hello) && connection !== "live" && connection !== "connecting");
    show(byId("lost"), lost);
    if (!lost) return;
    const old = hello ? `What is shown is ${lasting(Math.max(1000, Date.now() - this.store.heard))} old.` : "The service does not answer.";
    put(byId("lost-title"), "Not connected.");
    put(byId("lost-text"), `${old} Robots do not depend on this page; without the service, they hold. Trying again.`);
  }

  #title() {
    const troubled = this.store.open().filter((robot) => robot.status.state === "hold" || robot.status.state === "stop").length;
    const what = this.store.connection === "lost" ? "(not live) " : troubled ? `(${troubled} held) ` : "";
    const title = `${what}edgeflow`;
    if (document.title !== title) document.title = title;
  }

  /** HOLD and STOP are read out, a few at a time. */
  #notice(value) {
    for (const [session, { events }] of Object.entries(value.sessions ?? {})) {
      for (const { kind, reason } of events ?? []) {
        if (kind === "hold" || kind === "stop") this.news.push(`Robot ${session} ${kind.toUpperCase()}: ${meaning(reason) || reason || ""}`.slice(0, 120));
      }
    }
    if (this.news.length > 20) this.news.splice(0, this.news.length - 20);
  }

  #announce() {
    const now = performance.now();
    if (!this.news.length || now - this.said < QUIET_MS) return;
    this.said = now;
    const [first, second, ...rest] = this.news.splice(0);
    put(byId("announce"), [first, second, rest.length ? `and ${rest.length} more` : ""].filter(Boolean).join(". "));
  }
}

new Page();
