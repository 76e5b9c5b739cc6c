// Numbers and states as people read them.

const NBSP = "\u00a0";

const REASONS = {
  ACTION_TOO_OLD: "action would be too old",
  ACT_TIMEOUT: "no answer in time",
  EPOCH_CHANGED: "new instruction or reset",
  FAULT: "faults: reset at the robot",
  FORCED: "forced for a test",
  INGRESS_SILENT: "no frames from the robot",
  OPERATOR_HOLD: "held by an operator",
  OVERTAKEN: "overtaken by a newer frame",
  POLICY_OUTPUT_INVALID: "invalid policy output",
  SUPERSEDED: "replaced by a newer frame",
  WORKER_LOST: "worker lost",
  WORKER_RESTARTING: "worker is restarting",
  CLIENT_CLOSED: "closed by its program",
  CLIENT_GONE: "its program or the connection ended",
  DRAINING: "service is stopping",
  NOT_REOPENED: "no room when it came back",
  OPERATOR_ENDED: "ended by an operator",
  RATE_EXCEEDED: "more frames than permitted",
  REVOKED: "its token no longer permits it",
  SESSION_AGE: "longest time of a session reached",
  SILENT: "no frames for too long",
  SLOW_READER: "did not read its answers",
  TOO_MANY_REJECTED: "too many rejected frames",
  SESSION_CLOSED: "session closed",
};

const STATES = {
  acting: { word: "Acting", rank: 4 },
  hold: { word: "HOLD", rank: 1 },
  stop: { word: "STOP", rank: 0 },
  waiting: { word: "Waiting", rank: 2 },
  parked: { word: "Parked", rank: 3 },
};

/** Word and shape of a state; an unknown one is shown as it is. */
export function stateOf(name) {
  return STATES[name] ?? { word: String(name ?? "unknown"), rank: 2 };
}

/** Why a session ended, in words. The reason is a label in lower case. */
export const endOf = ({ code, reason }) => meaning(String(reason).toUpperCase()) || reason || code || "unknown reason";

/** What a reason means, in words, or nothing. */
export const meaning = (reason) => (Object.hasOwn(REASONS, reason) ? REASONS[reason] : "");

export const known = (value) => typeof value === "number" && Number.isFinite(value);

/** A duration in milliseconds as number and unit. */
export function duration(ms) {
  if (!known(ms)) return ["–", ""];
  if (ms < 9.95) return [ms.toFixed(1), "ms"];
  if (ms < 9_995) return [Math.round(ms).toString(), "ms"];
  if (ms < 99_500) return [(ms / 1000).toFixed(1), "s"];
  const [value, unit] = ms < 5_940_000 ? [ms / 60_000, "min"] : ms < 1.7e8 ? [ms / 3.6e6, "h"] : [ms / 8.64e7, "days"];
  return [Math.round(value).toString(), unit];
}

/** Number and unit as one word, which no line break parts. */
export const span = (ms) => duration(ms).join(NBSP).trim();

/** How long something has lasted, in whole units that have passed. */
export function lasting(ms) {
  if (!known(ms)) return "";
  if (ms < 1000) return "just now";
  const [value, unit] = ms < 60_000 ? [ms / 1000, "s"] : ms < 3.6e6 ? [ms / 60_000, "min"] : ms < 1.728e8 ? [ms / 3.6e6, "h"] : [ms / 8.64e7, "days"];
  return `${Math.floor(value)}${NBSP}${unit}`;
}

export const rate = (hz) => (known(hz) ? (hz < 99.95 ? hz.toFixed(1) : hz.toFixed(0)) : "–");

/** A share in whole percent; a small one is not none. */
export function percent(share) {
  if (!known(share)) return "–";
  return share > 0 && share < 0.005 ? `<${NBSP}1${NBSP}%` : `${Math.round(100 * share)}${NBSP}%`;
}

/** A rate with its unit. */
export const hertz = (hz) => `${rate(hz)}${NBSP}Hz`;

/** A time that is compared with another one: with a decimal up to 100 ms. */
export const exact = (ms) => (known(ms) && ms >= 9.95 && ms < 99.95 ? `${ms.toFixed(1)}${NBSP}ms` : span(ms));

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** A value with at most four digits, and a real minus. */
export function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 10_000) ? value.toExponential(1) : value.toFixed(size < 1 ? 3 : size < 100 ? 2 : 0);
  return text.replaceAll("-", "−");
}

/** A time of the day. */
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
