// The operator's requests to the robot shown: hold, resume, a new instruction, another mode, end.

import { element, errorText, field, once, say } from "./elements.js";

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
    this.title = element("h3", { id: "operate-title" }, "Operate");
    this.locked = element("p", { class: "panel-locked", hidden: true });
    this.controls = element("fieldset", { class: "panel-controls", "aria-labelledby": "operate-title" });
    this.controls.append(this.holdForm(), this.instructForm(), this.modeForm(), this.endForm());
    const notice = element("p", { class: "panel-notice", id: "operate-notice" }, NOTICE);
    root.append(element("section", { class: "panel" }, this.title, notice, this.locked, this.controls));
    this.update();
  }

  update() {
    const robot = this.store.focus;
    if ((robot?.session ?? null) !== this.session) this.show(robot?.session ?? null);
    const why = this.lockedBy(robot);
    this.controls.disabled = Boolean(why);
    this.locked.hidden = !why;
    say(this.locked, why);
    if (!robot) return;
    const held = robot.status?.operator ?? null;
    this.hold.hidden = Boolean(held);
    this.resume.hidden = !held;
    if (held) {
      const since = new Date(held.since).toLocaleTimeString();
      say(this.heldText, `Held since ${since}${held.by ? ` by ${held.by}` : ""}${held.reason ? `: ${held.reason}` : ""}`);
    }
  }

  /** Another robot is shown: what was typed for the one before must not reach this one. */
  show(session) {
    this.session = session;
    say(this.title, session === null ? "Operate" : `Operate robot ${session}`);
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
        if (session === this.session) this.result(output, done);
      } catch (error) {
        if (session === this.session) this.result(output, errorText(error), true);
      }
    });
  }

  result(output, text, failed = false) {
    output.classList.toggle("panel-error", failed);
    say(output, text);
  }

  output() {
    const made = element("output", { class: "panel-result", "aria-live": "polite" });
    this.outputs.push(made);
    return made;
  }

  form(name, ...children) {
    const made = element("form", { class: "panel-form", "aria-label": name, novalidate: true }, ...children);
    made.addEventListener("submit", (event) => event.preventDefault());
    return made;
  }

  holdForm() {
    const reason = element("input", { type: "text", maxlength: TEXT_LENGTH, autocomplete: "off", dir: "auto" });
    const output = this.output();
    const notice = { "aria-describedby": "operate-notice" };
    const hold = element("button", { type: "submit", class: "hold", ...notice }, "HOLD");
    const resume = element("button", { type: "button", class: "primary" }, "Resume");
    this.heldText = element("p", { class: "panel-held", dir: "auto" });
    this.hold = element("div", {}, field("Reason (shown to the robot)", reason).row, hold);
    this.resume = element("div", { hidden: true }, this.heldText, resume);
    const form = this.form("Hold and resume", this.hold, this.resume, output);
    form.addEventListener("submit", () =>
      this.send(hold, output, "hold", { reason: reason.value.trim() }, "The robot got HOLD."),
    );
    resume.addEventListener("click", () =>
      this.send(resume, output, "resume", {}, "Resumed: the robot acts with its next answer."),
    );
    return form;
  }

  instructForm() {
    const text = element("input", { type: "text", maxlength: TEXT_LENGTH, autocomplete: "off", dir: "auto" });
    const hint = "Begins a new epoch. An instruction that the robot sends later replaces it.";
    const button = element("button", { type: "submit" }, "Instruct");
    const output = this.output();
    const form = this.form("Instruct", field("New instruction", text, hint).row, button, output);
    form.addEventListener("submit", async () => {
      const instruction = text.value.trim();
      if (!instruction) {
        this.result(output, "Write an instruction first.", true);
        text.focus();
        return;
      }
      await this.send(button, output, "instruct", { instruction }, `A new epoch began: ${instruction}`);
    });
    return form;
  }

  modeForm() {
    this.mode = element("select", {}, ...MODES.map(([value, label]) => element("option", { value }, label)));
    const number = (most) => element("input", { type: "number", min: 0, max: most, value: 0, inputmode: "numeric" });
    this.depth = field("Depth", number(64), "1 is serial; the highest is pipelined.");
    this.tolerance = field("Tolerance in bins", number(2), "0: exact tokens only.");
    this.passes = field("Most passes per frame", number(64), "0: until all tokens are verified.");
    const button = element("button", { type: "submit" }, "Change mode");
    const output = this.output();
    const hint = "The service plans again, and rejects a mode that does not fit beside the other robots.";
    const rows = [field("Mode", this.mode, hint), this.depth, this.tolerance, this.passes].map((each) => each.row);
    const form = this.form("Mode", ...rows, button, output);
    this.mode.addEventListener("change", () => this.modeFields());
    form.addEventListener("submit", () => {
      const mode = this.mode.value;
      const body = { mode };
      if (mode === "depth") body.depth = Number(this.depth.input.value);
      if (mode === "speculative") {
        body.tolerance_bins = Number(this.tolerance.input.value);
        body.max_passes = Number(this.passes.input.value);
      }
      this.send(button, output, "mode", body, `Mode ${mode} was accepted.`);
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
    const reason = element("input", { type: "text", maxlength: TEXT_LENGTH, autocomplete: "off", dir: "auto" });
    const end = element("button", { type: "submit", class: "danger" }, "End session…");
    const output = this.output();
    const form = this.form("End the session", field("Reason for the end", reason).row, end, output);
    const sure = element("button", { type: "button", class: "danger" }, "End session");
    const back = element("button", { type: "button" }, "Keep it");
    const question = element("h2", { id: "end-title" });
    this.confirmation = element(
      "dialog",
      { class: "panel-dialog", "aria-labelledby": "end-title" },
      question,
      element("p", {}, "The robot holds. It gets no further actions until it opens another session."),
      element("div", { class: "panel-buttons" }, back, sure),
    );
    document.body.append(this.confirmation);
    form.addEventListener("submit", () => {
      say(question, `End the session of robot ${this.session}?`);
      this.confirmation.showModal();
      back.focus();
    });
    back.addEventListener("click", () => this.confirmation.close());
    sure.addEventListener("click", () => {
      this.confirmation.close();
      this.send(end, output, "end", { reason: reason.value.trim() }, "The session was ended.");
    });
    return form;
  }
}
