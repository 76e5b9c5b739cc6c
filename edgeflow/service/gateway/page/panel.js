// What the panels share: labelled fields, one request at a time, errors in words.

import { h } from "./dom.js";

let count = 0;

/** A labelled input: {row, input}. A hint is read with it. */
export function field(label, input, hint = "") {
  count += 1;
  input.id = `field-${count}`;
  const row = h("div", { class: "panel-field" }, h("label", { for: input.id }, label), input);
  if (hint) {
    row.append(h("p", { class: "panel-hint", id: `${input.id}-hint` }, hint));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return { row, input };
}

/** A checkbox with its label: {row, input, label}. */
export function checkbox(text, checked) {
  count += 1;
  const input = h("input", { type: "checkbox", id: `field-${count}`, checked });
  const label = h("label", { for: input.id }, text);
  return { row: h("div", { class: "panel-check" }, input, label), input, label };
}

/** A button that does not submit a form. */
export function button(text, names, clicked) {
  const made = h("button", { type: "button", class: names }, text);
  made.addEventListener("click", clicked);
  return made;
}

/** What an error of a request means, in one line. */
export function errorText(error) {
  if (error instanceof TypeError) return "The service did not answer: it is down, or the network is.";
  const text = error?.text ?? error?.message ?? String(error);
  return error?.field && !text.startsWith(error.field) ? `${error.field}: ${text}` : text;
}

/** Run a request from a button: no second one while it is in flight, and the focus stays where it is. */
export async function once(control, request) {
  if (control.getAttribute("aria-disabled") === "true") return;
  control.setAttribute("aria-disabled", "true");
  try {
    await request();
  } finally {
    control.removeAttribute("aria-disabled");
  }
}
