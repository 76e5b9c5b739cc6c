// How to connect a robot: commands to copy, the addresses of clients, and the simulated robot.

import { h, put, show } from "./dom.js";
import { button, errorText, once } from "./panel.js";

const DEMO = "/admin/v1/demo-robot";
const ANY = /^(0\.0\.0\.0|\[::\]|::|HOST)$/;
const DEMO_POLL_MS = 3000;
const SAID_MS = 6000; // for which "Copied" stays

export class Connect {
  constructor(root, { api, store }) {
    this.api = api;
    this.store = store;
    this.known = "";
    this.asked = 0;
    this.title = h("h2");
    this.status = h("p", { class: "panel-result", role: "status" });
    this.commands = h("div", { class: "connect-commands" });
    this.details = h("details", { class: "panel connect" }, h("summary", {}, this.title));
    this.details.append(this.demoRow(), this.status, this.commands);
    root.append(this.details);
    this.empty = null;
    this.update();
  }

  update() {
    const hello = this.store.hello;
    if (!hello) return;
    const { empty } = this.store;
    if (empty !== this.empty) {
      this.empty = empty;
      this.details.open = empty;
      put(this.title, empty ? "No robot is connected. Connect one:" : "Connect a robot");
    }
    const known = JSON.stringify([hello.addresses, this.store.models, hello.tokens, hello.tls]);
    if (known !== this.known) {
      this.known = known;
      this.commands.replaceChildren(...this.sections(hello));
    }
    show(this.demo, Boolean(hello.may?.demo));
    if (hello.may?.demo && this.details.open && Date.now() - this.asked > DEMO_POLL_MS) this.askDemo();
  }

  demoRow() {
    this.running = null;
    this.demoButton = button("Start the simulated robot", "primary", () => this.startOrStop());
    this.demoState = h("p", { class: "panel-result", role: "status" });
    this.demo = h("div", { class: "panel-form", hidden: true }, this.demoButton, this.demoState);
    return this.demo;
  }

  startOrStop() {
    return once(this.demoButton, async () => {
      put(this.demoState, this.running ? "Stopping…" : "Starting: the robot shows up within a few seconds…");
      try {
        this.showDemo(await this.api.request(this.running ? "DELETE" : "POST", DEMO, this.running ? undefined : {}));
      } catch (error) {
        put(this.demoState, errorText(error));
      }
    });
  }

  async askDemo() {
    this.asked = Date.now();
    try {
      this.showDemo(await this.api.request("GET", DEMO));
    } catch {
      // the page says by itself when the service is gone
    }
  }

  showDemo(state) {
    const changed = this.running !== Boolean(state?.running);
    this.running = Boolean(state?.running);
    put(this.demoButton, this.running ? "Stop the simulated robot" : "Start the simulated robot");
    if (changed) put(this.demoState, this.running ? "The simulated robot runs on the service's machine." : "");
  }

  sections(hello) {
    const grpc = reachable(hello.addresses?.grpc ?? "");
    const secure = hello.tls ? " --tls-ca ca.pem" : "";
    const options = `${secure}${hello.tokens ? " --token-file robot.token" : ""}`;
    const policy = this.store.models.find((entry) => "actions" in entry);
    const test = `edgeflow loadtest ${grpc}${loadOptions(policy)} --rate 5 --robots 4${options}`;
    const token = "edgeflow token new --principal arm-1 --role control --tokens tokens.json --out robot.token";
    const sdk = this.section("Your robot, with the SDK", sdkLoop(grpc, policy, hello), "In a clone: pip install ./client");
    return [
      ...(hello.tokens ? [this.section("A token for the robot", token, "On the service's machine.")] : []),
      this.section("A simulated robot", `edgeflow robot ${grpc} --speed 5${options}`, "Reaches for moving objects."),
      this.section("Many simulated robots", test, "Says how many the service carries, at what latency."),
      ...Object.values(policy?.clients ?? {}).map((client) => this.client(client)),
      sdk,
    ];
  }

  client(client) {
    const names = [...Object.entries(client.cameras ?? {}), ...Object.entries(client.state ?? {})];
    const told = names.map(([, name]) => (Array.isArray(name) ? name.join(" + ") : name)).join(", ");
    const hint = client.fits
      ? `Point its client at this address. It sends: ${told || "nothing by name"}.`
      : "Its clients use other names for cameras and state: map them under frontends in the configuration.";
    return this.section(client.clients, reachable(client.address), hint, client.fits ? "fits" : "needs names mapped");
  }

  section(title, text, hint, badge = "") {
    const code = h("pre", { class: "connect-code", tabIndex: 0, "aria-label": title }, h("code", {}, text));
    const copy = button("Copy", "quiet", () => this.copy(title, text, code));
    copy.setAttribute("aria-label", `Copy: ${title}`);
    const heading = h("h3", {}, title);
    if (badge) heading.append(" ", h("span", { class: "panel-badge" }, badge));
    return h("section", {}, heading, h("p", { class: "panel-hint" }, hint), code, copy);
  }

  async copy(title, text, code) {
    try {
      await navigator.clipboard.writeText(text);
      this.announce(`Copied: ${title}.`);
    } catch {
      // over plain HTTP from another machine, browsers offer no clipboard
      getSelection().selectAllChildren(code);
      this.announce("Selected: press Ctrl+C to copy.");
    }
  }

  /** Say it even if the same was said before. */
  announce(text) {
    put(this.status, "");
    requestAnimationFrame(() => put(this.status, text));
    clearTimeout(this.forgetting);
    this.forgetting = setTimeout(() => put(this.status, ""), SAID_MS);
  }
}

/** An address as robots reach it: a service that listens everywhere is where this page came from. */
function reachable(address) {
  const [, scheme, host, rest] = /^(\w+:\/\/)?(\[.*\]|[^:/]*)(.*)$/.exec(address);
  return `${scheme ?? ""}${ANY.test(host) ? location.hostname : host}${rest}`;
}

/** Cameras and state of a policy that asks for them by name. */
function loadOptions(policy) {
  const named = (policy?.cameras ?? []).filter((each) => each.named);
  const cameras = named.map((each) => `${each.name}:${each.width ?? 640}x${each.height ?? 480}`).join(",");
  const state = (policy?.state ?? []).map((each) => `${each.name}:${each.size}`).join(",");
  return `${cameras && ` --cameras ${cameras}`}${state && ` --state ${state}`}`;
}

/** The shortest loop of the SDK for this policy (docs/robots/loop-joints.md and loop-tool.md). */
function sdkLoop(address, policy, hello) {
  const text = (value) => JSON.stringify(value ?? "observation.state");
  const moves = policy?.actions?.some((each) => each.relative); // displacements of the tool
  const cameras = policy?.cameras?.length ? policy.cameras : [{ name: "image", width: null, height: null }];
  const spec = (each) => `CameraSpec(${text(each.name)}, ${each.width ?? 640}, ${each.height ?? 480}, ImageFormat.RGB8)`;
  const state = policy?.state?.[0];
  const types = ["CameraSpec", hello.tls || hello.tokens ? "Credentials" : "", "ImageFormat", "RateKeeper", "RobotClient"];
  if (!moves && state) types.push("StateSpec");
  const secrets = [hello.tls ? 'ca=Path("ca.pem")' : "", hello.tokens ? 'token_file=Path("robot.token")' : ""];
  const period = policy?.control_rate_hz ? 1 / policy.control_rate_hz : 0.05;
  const push = moves ? "arm.images(), pose=arm.pose()" : `arm.images(), state={${text(state?.name)}: arm.joints()}`;
  return [
    ...(secrets.some(Boolean) ? ["from pathlib import Path", ""] : []),
    `from edgeflow_client import ${types.filter(Boolean).join(", ")}`,
    "",
    "with RobotClient(",
    `    ${text(address)},`,
    `    cameras=[${cameras.map(spec).join(", ")}],`,
    ...(!moves && state ? [`    state=[StateSpec(${text(state.name)}, ${state.size})],`] : []),
    '    instruction="grasp the red handle",',
    `    control_period_s=${Number(period.toFixed(4))},`,
    ...(secrets.some(Boolean) ? [`    credentials=Credentials.of(${secrets.filter(Boolean).join(", ")}),`] : []),
    ") as client:",
    `    rate = RateKeeper(${Number(period.toFixed(4))})`,
    "    while True:",
    "        rate.wait()",
    `        client.push(${push})`,
    "        directive = client.latest()",
    ...(moves
      ? ["        if directive.tool is not None:", '            arm.move(directive.tool.pose, directive.tool.values["gripper"])']
      : ["        if directive.joints is not None:", "            arm.move(directive.joints)"]),
    "        else:",
    "            arm.hold()  # directive.reason says why",
    "        if directive.needs_reset:",
    "            arm.wait_for_person()",
    "            client.reset()",
  ].join("\n");
}
