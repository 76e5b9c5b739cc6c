// The operator's requests to the robot shown: hold, resume, a new instruction, another mode, end.

import { foreign, h, outside, put, show } from "./dom.js";
import { button, errorText, field, once } from "./panel.js";
import { clock } from "./words.js";

const NOTICE =
  "HOLD from here is a request over the network. It is no emergency stop: keep the robot's own within reach.";
const TEXT_LENGTH = 200; // characters, as the service accepts
const MODES = [
  ["auto", "auto: highest rate within the latency limit"],
  ["serial", "serial: one frame at a time"],
  ["depth", "depth: a pipeline of the given depth"],
  ["pipelined", "pipelined: highest rate"],
  ["speculative", "speculative: verified drafts"],
];

export class Operate {
  constructor(root, { api, store }) {
    this.api = api;
    this.store = store;
    this.session = null;
    this.outputs = [];
    this.title = h("h3", { id: "operate-title" }, "Operate");
    this.locked = h("p", { class: "panel-locked", hidden: true });
    this.controls = h("fieldset", { class: "panel-controls", "aria-labelledby": "operate-title" });
    this.controls.append(this.holdForm(), this.instructForm(), this.modeForm(), this.endForm());
    const notice = h("p", { class: "panel-notice", id: "operate-notice" }, NOTICE);
    root.append(h("section", { class: "panel" }, this.title, notice, this.locked, this.controls), this.confirmation);
    this.update();
  }

  update() {
    const robot = this.store.focus;
    if ((robot?.session ?? null) !== this.session) this.change(robot?.session ?? null);
    const why = this.lockedBy(robot);
    this.controls.disabled = Boolean(why);
    show(this.locked, Boolean(why));
    put(this.locked, why);
    const held = robot?.status.operator;
    const focused = this.holdButton === document.activeElement || this.resumeButton === document.activeElement;
    show(this.hold, !held);
    show(this.resume, Boolean(held));
    if (focused) (held ? this.resumeButton : this.holdButton).focus();
    if (!held) return;
    const by = held.by ? ` by ${outside(held.by)}` : "";
    put(this.heldText, `Held since ${clock(held.since)}${by}${held.reason ? `: ${outside(held.reason)}` : "."}`);
  }

  /** Another robot is shown: what was typed for the one before must not reach this one. */
  change(session) {
    this.session = session;
    put(this.title, session === null ? "Operate" : `Operate robot ${session}`);
    for (const form of this.controls.querySelectorAll("form")) form.reset();
    for (const output of this.outputs) this.result(output, "");
    this.modeFields();
    if (this.confirmation.open) this.confirmation.close();
  }

  lockedBy(robot) {
    const hello = this.store.hello;
    if (!robot) return "No robot is shown.";
    if (robot.closed) return "This session has ended.";
    if (hello?.may?.operate) return "";
    return hello?.tokens
      ? "Read only: your token lacks the role admin."
      : "Read only: without tokens, only a browser on the service's own machine may operate robots.";
  }

  /** Send one request for the robot that is shown now, and show what came of it beside the button. */
  async send(button, output, action, body, done) {
    const session = this.session;
    await once(button, async () => {
      this.result(output, "Sending…");
      try {
        await this.api.request("POST", `/admin/v1/sessions/${session}/${action}`, body);
        if (session !== this.session) return;
        this.result(output, done);
        button.form?.reset();
        this.modeFields();
      } catch (error) {
        if (session === this.session) this.result(output, errorText(error), true);
      }
    });
  }

  result(output, text, failed = false) {
    output.classList.toggle("panel-error", failed);
    put(output, text);
  }

  output() {
    const made = h("output", { class: "panel-result", "aria-live": "polite" });
    this.outputs.push(made);
    return made;
  }

  form(...children) {
    const made = h("form", { class: "panel-form", noValidate: true }, ...children);
    made.addEventListener("submit", (event) => event.preventDefault());
    return made;
  }

  holdForm() {
    const reason = textInput();
    const output = this.output();
    const notice = { "aria-describedby": "operate-notice" };
    this.holdButton = h("button", { type: "submit", class: "hold", ...notice }, "HOLD");
    this.resumeButton = button("Resume", "primary", () => {
      const done = "Resumed: the robot acts with its next answer.";
      this.send(this.resumeButton, output, "resume", {}, done);
    });
    this.heldText = foreign("p", "panel-held");
    this.hold = h("div", { class: "panel-form" }, field("Reason (the robot gets it)", reason).row, this.holdButton);
    this.resume = h("div", { class: "panel-form", hidden: true }, this.heldText, this.resumeButton);
    const form = this.form(this.hold, this.resume, output);
    form.addEventListener("submit", () => {
      if (this.hold.hidden) return; // Enter in a field that is gone
      this.send(this.holdButton, output, "hold", { reason: reason.value.trim() }, "The robot got HOLD.");
    });
    return form;
  }

  instructForm() {
    const text = textInput();
    const hint = "Begins a new epoch. An instruction that the robot sends later replaces it.";
    const instruct = h("button", { type: "submit" }, "Instruct");
    const output = this.output();
    const form = this.form(field("New instruction", text, hint).row, instruct, output);
    form.addEventListener("submit", async () => {
      const instruction = text.value.trim();
      if (!instruction) {
        this.result(output, "Write an instruction first.", true);
        text.focus();
        return;
      }
      await this.send(instruct, output, "instruct", { instruction }, `A new epoch began: ${instruction}`);
    });
    return form;
  }

  modeForm() {
    this.mode = h("select", {}, ...MODES.map(([value, label]) => h("option", { value }, label)));
    const number = (most) => h("input", { type: "number", min: 0, max: most, value: 0, inputMode: "numeric" });
    this.depth = field("Depth", number(64), "1 is serial; the highest is pipelined.");
    this.tolerance = field("Tolerance in bins", number(2), "0: exact tokens only.");
    this.passes = field("Most passes per frame", number(64), "0: until all tokens are verified.");
    const change = h("button", { type: "submit" }, "Change mode");
    const output = this.output();
    const hint = "The service plans again, and rejects a mode that does not fit beside the other robots.";
    const rows = [field("Mode", this.mode, hint), this.depth, this.tolerance, this.passes].map((each) => each.row);
    const form = this.form(...rows, change, output);
    this.mode.addEventListener("change", () => this.modeFields());
    form.addEventListener("submit", () => {
      const mode = this.mode.value;
      const body = { mode };
      if (mode === "depth") body.depth = Number(this.depth.input.value);
      if (mode === "speculative") {
        body.tolerance_bins = Number(this.tolerance.input.value);
        body.max_passes = Number(this.passes.input.value);
      }
      this.send(change, output, "mode", body, `Mode ${mode} was accepted.`);
    });
    this.modeFields();
    return form;
  }

  /** Show the numbers that the chosen mode takes. */
  modeFields() {
    this.depth.row.hidden = this.mode.value !== "depth";
    this.tolerance.row.hidden = this.passes.row.hidden = this.mode.value !== "speculative";
  }

  endForm() {
    const reason = textInput();
    const end = h("button", { type: "submit", class: "danger" }, "End session…");
    const output = this.output();
    const form = this.form(field("Reason for the end", reason).row, end, output);
    const back = button("Keep it", "", () => this.confirmation.close());
    const sure = button("End session", "danger", () => {
      this.confirmation.close();
      this.send(end, output, "end", { reason: reason.value.trim() }, "The session was ended.");
    });
    const question = h("h2", { id: "end-title" });
    this.confirmation = h(
      "dialog",
      { class: "panel-dialog", "aria-labelledby": "end-title" },
      question,
      h("p", {}, "The robot holds. It gets no further actions until it opens another session."),
      h("div", { class: "panel-buttons" }, back, sure),
    );
    form.addEventListener("submit", () => {
      put(question, `End the session of robot ${this.session}?`);
      this.confirmation.showModal();
      back.focus();
    });
    return form;
  }
}

function textInput() {
  return h("input", { type: "text", maxLength: TEXT_LENGTH, autocomplete: "off", dir: "auto" });
}
