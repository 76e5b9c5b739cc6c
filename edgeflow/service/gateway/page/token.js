// The access token: asked for once, kept in this tab, or on this device if the person wishes so. It never enters a URL.

import { h, put, show } from "./dom.js";
import { button, checkbox, field } from "./panel.js";

const KEY = "edgeflow.token";
const PRINTABLE = /^[\x21-\x7e]+$/; // what an HTTP header may carry

export class Token {
  /** root: where the dialog and the button to forget the token are put. */
  constructor(root) {
    this.waiting = null;
    this.value = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
    this.button = button("", "quiet", () => (this.value ? this.leave() : this.ask()));
    this.dialog = this.build();
    root.append(this.button, this.dialog);
    this.update();
  }

  /** The headers of a request. */
  headers() {
    return this.value ? { authorization: `Bearer ${this.value}` } : {};
  }

  /** Ask for a token, saying why; resolves once there is one. Who closes the dialog finds a button to enter it. */
  ask(why = this.why.textContent) {
    put(this.why, why);
    if (!this.waiting) {
      this.waiting = {};
      this.waiting.promise = new Promise((resolve) => {
        this.waiting.resolve = resolve;
      });
    }
    if (!this.dialog.open) this.dialog.showModal();
    this.update();
    return this.waiting.promise;
  }

  /** Drop the token that the service rejects, and ask for another one. */
  forget(why) {
    this.drop();
    return this.ask(why);
  }

  /** Drop the token and all that it showed. */
  leave() {
    this.drop();
    location.reload();
  }

  drop() {
    this.value = "";
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  }

  update() {
    show(this.button, Boolean(this.value || this.waiting));
    put(this.button, this.value ? "Forget the token" : "Enter the access token");
  }

  build() {
    const token = h("input", { type: "password", autocomplete: "off", spellcheck: false, required: true });
    const hint = "Printed once by: edgeflow token new --role observe (or admin, to operate robots).";
    const keep = checkbox("Keep on this device", false);
    this.why = h("p", { id: "token-why" });
    this.error = h("p", { class: "panel-error", role: "alert" });
    const form = h(
      "form",
      { class: "panel-form", noValidate: true },
      h("h2", { id: "token-title" }, "Access token"),
      this.why,
      field("Token", token, hint).row,
      keep.row,
      h("p", { class: "panel-hint" }, "Otherwise it is forgotten when this tab is closed."),
      this.error,
      h("button", { type: "submit", class: "primary" }, "Continue"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.accept(token, keep.input);
    });
    const named = { "aria-labelledby": "token-title", "aria-describedby": "token-why" };
    return h("dialog", { class: "panel-dialog", ...named }, form);
  }

  accept(input, keep) {
    const value = input.value.trim();
    if (!PRINTABLE.test(value)) {
      put(this.error, value ? "A token has no spaces or special characters: copy it again." : "Enter the token.");
      input.setAttribute("aria-invalid", "true");
      input.focus();
      return;
    }
    put(this.error, "");
    input.removeAttribute("aria-invalid");
    input.value = "";
    this.value = value;
    (keep.checked ? localStorage : sessionStorage).setItem(KEY, value);
    this.dialog.close();
    this.waiting?.resolve();
    this.waiting = null;
    this.update();
  }
}
