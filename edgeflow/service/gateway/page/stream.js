// Requests to the service, and its stream of events. Tokens travel in headers, never in an address.

const SILENT_MS = 4_000; // `service` comes every second
const FIRST_MS = 500;
const LAST_MS = 10_000;

/** An answer of the service that is no success. */
export class ApiError extends Error {
  constructor(status, { message, code, field } = {}) {
    super(message || `the service answered with status ${status}`);
    this.status = status;
    this.code = code ?? "";
    this.field = field ?? "";
    this.text = this.message;
  }
}

async function errorOf(answer) {
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch {
    // No JSON: the status says enough.
  }
  return new ApiError(answer.status, error);
}

/** HTTP requests of the page. headers: a function that returns the headers of the token. */
export class Api {
  constructor(headers = () => ({})) {
    this.headers = headers;
  }

  /** The answer to a request, whatever its status. Paths are those of the service, also behind a proxy's prefix. */
  fetch(path, options = {}) {
    const headers = { ...options.headers, ...this.headers() };
    const address = new URL(path.replace(/^\//, ""), document.baseURI);
    return fetch(address, { cache: "no-store", credentials: "same-origin", redirect: "error", ...options, headers });
  }

  /** The JSON of a successful answer; ApiError for another one. */
  async request(method, path, body) {
    const options = { method };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers = { "content-type": "application/json" };
    }
    const answer = await this.fetch(path, options);
    if (!answer.ok) throw await errorOf(answer);
    return answer.status === 204 ? null : answer.json();
  }
}

/**
 * The events of /events, for as long as the page lives.
 *
 * handlers: `event(type, value)`, `state(name, error)` with connecting, live, lost or token.
 */
export class EventStream {
  constructor(api, handlers) {
    this.api = api;
    this.handlers = handlers;
    this.details = [];
    this.failures = 0;
    this.current = null;
    this.timer = 0;
  }

  /** Begin, or begin again: with other details, after a token, or without waiting for the next try. */
  open(details = this.details) {
    this.details = details;
    clearTimeout(this.timer);
    this.current?.abort();
    this.current = new AbortController();
    this.#read(this.current).catch((error) => this.#lost(error));
  }

  async #read(own) {
    const query = this.details.map((session) => `detail=${session}`).join("&");
    const late = () => own.abort(new Error("no news for 4 s"));
    let timer = setTimeout(late, SILENT_MS);
    try {
      const answer = await this.api.fetch(query ? `events?${query}` : "events", {
        signal: own.signal,
        headers: { accept: "text/event-stream" },
      });
      if (!answer.ok) throw await errorOf(answer);
      for await (const [type, data] of events(answer.body)) {
        if (own !== this.current) return;
        clearTimeout(timer);
        timer = setTimeout(late, SILENT_MS);
        this.handlers.event(type, JSON.parse(data));
        if (type !== "hello") continue;
        this.failures = 0;
        this.handlers.state("live");
      }
      throw new Error("the service ended the connection");
    } catch (error) {
      if (own !== this.current) return; // another one has taken its place
      throw own.signal.aborted ? (own.signal.reason ?? error) : error;
    } finally {
      clearTimeout(timer);
    }
  }

  #lost(error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
      this.handlers.state("token", error);
      return;
    }
    this.handlers.state("lost", error);
    const wait = Math.min(LAST_MS, FIRST_MS * 2 ** this.failures++);
    this.timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
  }
}

/** Server-sent events, each as its type and its line of data. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, type] = ["", "message"];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) type = line.slice(7);
      else if (line.startsWith("data: ")) yield [type, line.slice(6)];
    }
  }
}
