// The operator asks the chat model about the robot shown.

import { attribute, foreign, h, match, outside, put, show } from "./dom.js";
import { button, checkbox, errorText, field } from "./panel.js";
import { chatModel, robotFacts, robotLine } from "./prompt.js";
import { ApiError, events } from "./stream.js";

const PROMPT_TOKENS = 1500;
const ANSWER_TOKENS = 256; // room for an answer
const CHARACTERS_PER_TOKEN = 3; // English facts with many numbers, cautiously
const QUESTIONS = ["What is this robot doing?", "Is its latency within the limit?", "What should I look at?"];
const HELD_QUESTION = "Why does this robot hold?";
const LINE_NOTE =
  "The embedded model is tiny: it reads a line of fixed form and answers these questions about it. It cannot explain a " +
  "HOLD. To ask freely, serve a larger model: edgeflow serve --set chat.model=DIRECTORY";
const NO_MODEL =
  "No chat model is configured. Serve one with: edgeflow serve --set chat.model=DIRECTORY (Llama, Qwen, or a hub id); " +
  "remove chat.enabled=false if it is set.";

export class Ask {
  constructor(root, { api, store }) {
    this.api = api;
    this.store = store;
    this.session = null;
    this.abort = null;
    this.suggested = new Map();
    this.build(root);
    this.update();
  }

  build(root) {
    this.title = h("h3", {}, "Ask the chat model");
    this.note = h("p", { class: "panel-hint" });
    this.question = h("textarea", { rows: 2, maxLength: 500, dir: "auto" });
    this.suggestions = h("div", { class: "panel-buttons", role: "group", "aria-label": "Questions to ask" });
    this.picture = checkbox("Send the picture of camera ", true);
    this.camera = foreign("span");
    this.picture.label.append(this.camera);
    this.askButton = h("button", { type: "submit", class: "primary" }, "Ask");
    this.stopButton = button("Stop the answer", "", () => this.abort?.abort());
    show(this.stopButton, false);
    this.asked = foreign("p", "ask-asked");
    this.answer = foreign("p", "ask-answer");
    this.state = h("p", { class: "panel-result", role: "status" });
    this.facts = h("pre", { class: "ask-facts", tabIndex: 0, dir: "auto", "aria-label": "What the model receives" });
    this.told = h("details", {}, h("summary", {}, "What the model receives"), this.facts);
    const buttons = h("div", { class: "panel-buttons" }, this.askButton, this.stopButton);
    this.free = field("Question about this robot", this.question).row;
    this.form = h("form", { class: "panel-form" }, this.suggestions, this.free, this.picture.row, buttons);
    root.append(
      h("section", { class: "panel" }, this.title, this.note, this.form, this.asked, this.answer, this.state, this.told),
    );
    this.told.addEventListener("toggle", () => this.showFacts());
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.question.value.trim());
    });
  }

  update() {
    const robot = this.store.focus;
    const model = chatModel(this.store);
    if ((robot?.session ?? null) !== this.session) this.change(robot?.session ?? null);
    const why = this.lockedBy(robot, model);
    const line = !why && model.reads === "robot-state";
    show(this.form, !why);
    show(this.told, !why);
    put(this.note, why || (line ? LINE_NOTE : "Answers can be wrong: compare them with the facts."));
    if (why) return;
    this.suggest(line ? robotLine(this.store).questions : this.questions(robot));
    for (const each of this.suggestions.children) attribute(each, "aria-disabled", Boolean(this.abort));
    show(this.free, !line);
    show(this.askButton, !line && !this.abort);
    const camera = model.images ? robot.facts.cameras[0] : undefined;
    show(this.picture.row, Boolean(camera));
    if (camera) put(this.camera, outside(camera.name));
  }

  change(session) {
    this.session = session;
    this.abort?.abort();
    this.question.value = "";
    put(this.title, session === null ? "Ask the chat model" : `Ask the chat model about robot ${session}`);
    this.answer.replaceChildren();
    put(this.asked, "");
    put(this.state, "");
    this.showFacts();
  }

  lockedBy(robot, model) {
    if (!model) return NO_MODEL;
    if (!this.store.hello?.may?.chat) return "Your token lacks the role chat.";
    return robot ? "" : "No robot is shown.";
  }

  questions(robot) {
    const held = robot.status.state === "hold" || robot.status.state === "stop";
    return held ? [HELD_QUESTION, ...QUESTIONS] : QUESTIONS;
  }

  suggest(questions) {
    const made = (text) => button(outside(text), "quiet", () => this.ask(text));
    match(this.suggestions, this.suggested, questions, (text) => text, made);
  }

  /** The system message: as much as fits the model. */
  system(model) {
    if (model.reads === "robot-state") return robotLine(this.store).line;
    const tokens = Math.min(PROMPT_TOKENS, model.max_model_len - ANSWER_TOKENS - this.question.value.length / 2);
    return robotFacts(this.store, Math.max(500, tokens * CHARACTERS_PER_TOKEN));
  }

  showFacts() {
    const model = chatModel(this.store);
    if (this.told.open && this.store.focus && model) put(this.facts, this.system(model));
  }

  async ask(question) {
    if (this.abort) return;
    if (!question) {
      put(this.state, "Write a question first.");
      this.question.focus();
      return;
    }
    const abort = (this.abort = new AbortController());
    const session = this.session;
    let state = "";
    this.busy(true);
    this.answer.replaceChildren();
    put(this.asked, question);
    put(this.state, "Asking…");
    try {
      await this.stream(question, abort.signal);
      state = this.answer.textContent ? "The answer is complete." : "The model answered nothing.";
    } catch (error) {
      state = abort.signal.aborted ? "Stopped." : this.failure(error);
    }
    this.abort = null;
    this.busy(false);
    if (session === this.session) put(this.state, state);
  }

  busy(is) {
    const focused = [this.askButton, this.stopButton].includes(document.activeElement);
    show(this.stopButton, is);
    this.update();
    if (focused) (is ? this.stopButton : this.askButton).focus();
  }

  async stream(question, signal) {
    const session = this.session;
    const model = chatModel(this.store);
    const system = this.system(model);
    put(this.facts, system);
    const content = [{ type: "text", text: question }];
    if (model.images && this.picture.input.checked) {
      const picture = await this.firstPicture(session, signal);
      if (picture) content.unshift({ type: "image_url", image_url: { url: picture } });
    }
    const messages = [
      { role: "system", content: system },
      { role: "user", content: content.length === 1 ? question : content },
    ];
    const body = { model: model.id, stream: true, messages };
    const headers = { "content-type": "application/json" };
    const options = { method: "POST", headers, body: JSON.stringify(body), signal };
    const response = await this.api.fetch("/v1/chat/completions", options);
    if (!response.ok) throw new ApiError(response.status, (await response.json()).error);
    for await (const [, data] of events(response.body)) {
      if (signal.aborted || data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new ApiError(response.status, part.error);
      const piece = part.choices?.[0]?.delta?.content;
      if (piece) this.answer.append(piece);
    }
  }

  /** The newest picture of the first camera as a data URL; "" where there is none. */
  async firstPicture(session, signal) {
    if (!this.store.focus?.facts.cameras.length) return "";
    const response = await this.api.fetch(`/events/images/${session}/0`, { signal });
    if (response.status !== 200) return "";
    const picture = await response.blob();
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(picture);
    });
  }

  failure(error) {
    const text = errorText(error);
    if (error?.code === "RESOURCE_EXHAUSTED") return `${text}. Other questions are being answered: ask again in a moment.`;
    return text.includes("no chat model") ? NO_MODEL : text;
  }
}
