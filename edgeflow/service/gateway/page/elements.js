// Elements of the panels. Text goes in as text only: the page never parses markup.

/** An element; `attributes` are set as attributes, `children` are nodes or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** Show a text; an unchanged one is left alone, so that screen readers stay quiet. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let count = 0;

/** A labelled input: {row, input}. A hint is read with it. */
export function field(label, input, hint = "") {
  count += 1;
  input.id = `panel-field-${count}`;
  const row = element("div", { class: "panel-field" }, element("label", { for: input.id }, label), input);
  if (hint) {
    row.append(element("p", { class: "panel-hint", id: `${input.id}-hint` }, hint));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return { row, input };
}

/** What an error of `api.request` means to a person, in one line. */
export function errorText(error) {
  if (error?.name === "TypeError") return "The service did not answer: it is down, or the network is.";
  const parts = [error?.field, error?.text ?? error?.message ?? String(error)].filter(Boolean);
  const reason = error?.reason && !parts.join(" ").includes(error.reason) ? ` (${error.reason})` : "";
  return parts.join(": ") + reason;
}

/** Run a request from a button: no second one while it is in flight, and the focus stays where it is. */
export async function once(button, request) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    await request();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}
