// The access token: asked for once, kept in this tab, or on this device if the person wishes so. It never enters a URL.

import { element, field, say } from "./elements.js";

const KEY = "edgeflow.token";
const PRINTABLE = /^[\x21-\x7e]+$/; // what an HTTP header may carry

export class Token {
  /** root: where the button to forget the token appears. */
  constructor(root, { store }) {
    this.store = store;
    this.waiting = null;
    this.value = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
    this.forgetButton = element("button", { type: "button", class: "quiet", hidden: true }, "Forget the token");
    this.forgetButton.addEventListener("click", () => this.forget("The token was forgotten."));
    root.append(this.forgetButton);
    this.buildDialog();
    this.update();
  }

  /** The headers of a request. */
  headers() {
    return this.value ? { authorization: `Bearer ${this.value}` } : {};
  }

  /** Ask for a token, saying why; resolves once there is one. */
  ask(why) {
    say(this.why, why);
    if (!this.waiting) {
      this.waiting = Promise.withResolvers?.() ?? resolvers();
      this.dialog.showModal();
    }
    return this.waiting.promise;
  }

  /** Drop the token, for instance after a 401, and ask for another one. */
  forget(why) {
    this.value = "";
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    this.update();
    return this.ask(why);
  }

  update() {
    this.forgetButton.hidden = !this.value;
  }

  buildDialog() {
    const token = element("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
    const hint = "Printed once by: edgeflow token new --role observe (or admin, to operate robots).";
    const keep = element("input", { type: "checkbox", id: "token-keep" });
    this.why = element("p", { id: "token-why" });
    this.error = element("p", { class: "panel-error", role: "alert" });
    const form = element(
      "form",
      { class: "panel-form", novalidate: true },
      element("h2", { id: "token-title" }, "Access token"),
      this.why,
      field("Token", token, hint).row,
      element("div", { class: "panel-check" }, keep, element("label", { for: keep.id }, "Keep on this device")),
      element("p", { class: "panel-hint" }, "Otherwise it is forgotten when this tab is closed."),
      this.error,
      element("button", { type: "submit", class: "primary" }, "Continue"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.accept(token, keep);
    });
    this.dialog = element(
      "dialog",
      { class: "panel-dialog", "aria-labelledby": "token-title", "aria-describedby": "token-why" },
      form,
    );
    this.dialog.addEventListener("cancel", (event) => event.preventDefault()); // without a token there is no page
    document.body.append(this.dialog);
  }

  accept(input, keep) {
    const value = input.value.trim();
    if (!PRINTABLE.test(value)) {
      say(this.error, value ? "A token has no spaces or special characters: copy it again." : "Enter the token.");
      input.setAttribute("aria-invalid", "true");
      input.focus();
      return;
    }
    say(this.error, "");
    input.removeAttribute("aria-invalid");
    input.value = "";
    this.value = value;
    (keep.checked ? localStorage : sessionStorage).setItem(KEY, value);
    this.update();
    this.dialog.close();
    this.waiting?.resolve();
    this.waiting = null;
  }
}

function resolvers() {
  const made = {};
  made.promise = new Promise((resolve) => {
    made.resolve = resolve;
  });
  return made;
}
