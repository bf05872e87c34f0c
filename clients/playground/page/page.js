// What is asked for is `state`; everything that the page shows follows from it and from the
// compiler's answers.
//
// Two compilers run beside the page. `quick` answers while one types: errors, and code for the
// schedule of the last answer or for the defaults. `slow` finds the schedule of the cost model,
// once nobody has typed for a while, and is stopped by a key.

const $ = (id) => document.getElementById(id);
const library = JSON.parse($("library").textContent);
const examples = Object.values(library).reduce((all, group) => ({ ...all, ...group }), {});
const FIRST = "causal_attention";
const PAUSE_MS = 400;
const LONG_MS = 1000;
// Names of sizes are a kernel's, so that objects with sizes have no prototype.
const sizesOf = (pairs) => Object.assign({ __proto__: null }, Object.fromEntries(pairs));
const first = () => ({
  example: FIRST, text: examples[FIRST], kernel: "", dtype: "bf16", arch: "sm_90a", sizes: sizesOf([]), schedule: "", tab: "Masks",
});
const state = first();
let [quick, slow, about] = [null, null, null];
// The last answers: of the text, of the compiler, and the schedule that the answer is for.
let checked = { diagnostics: [], kernels: [] };
let shown = null;
// Line of the text that the pointer or the caret is at.
let here = null;
// What is wrong with the address, in front of every message until something is changed.
let notice = "";

// ---- elements

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made[key] = value;
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const heading = (text) => element("h3", {}, text);
const plain = (text) => element("pre", {}, text);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function options(select, names, chosen) {
  select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  select.value = chosen;
}

function say(text, failed = false) {
  $("status").textContent = notice + text;
  $("status").classList.toggle("failed", failed || notice !== "");
}

// ---- compilers

class Compiler {
  constructor(module) {
    this.module = module;
    this.number = 0;
    this.waiting = new Map();
    this.start();
  }

  start() {
    const url = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
    this.worker = new Worker(url);
    this.ready = new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }) => (data.ready ? resolve() : this.hear(data));
      this.worker.onerror = (event) => reject(new Error(event.message || "the worker did not start"));
    });
    this.worker.postMessage({ module: this.module });
  }

  // The answer to a request, with the milliseconds that it took; `undefined` if `stop` came first.
  async ask(request) {
    await this.ready;
    const number = ++this.number;
    return new Promise((resolve, reject) => {
      this.waiting.set(number, { resolve, reject, since: performance.now() });
      this.worker.postMessage({ number, request });
    });
  }

  hear({ number, answer, milliseconds, trap }) {
    const { resolve, reject } = this.waiting.get(number);
    this.waiting.delete(number);
    if (trap === undefined) return resolve({ answer, milliseconds });
    // A module that has trapped is in no known state.
    this.restart();
    reject(new Error(`the compiler stopped (${trap}); this is a defect of the compiler, and the text shows it`));
  }

  // Gives up what is asked for, once it has taken `least` milliseconds.
  stop(least = 0) {
    const [oldest] = this.waiting;
    if (!oldest) return;
    const [number, { since }] = oldest;
    const left = since + least - performance.now();
    if (left <= 0) this.restart();
    else setTimeout(() => this.waiting.has(number) && this.restart(), left);
  }

  restart() {
    const abandoned = [...this.waiting.values()];
    this.waiting.clear();
    this.worker.terminate();
    this.start();
    abandoned.forEach(({ resolve }) => resolve(undefined));
  }
}

async function moduleOfPage() {
  const packed = Uint8Array.from(atob($("module").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
}

// ---- from a change to what is shown

const kernelOf = () => checked.kernels.find((k) => k.name === state.kernel) ?? checked.kernels[0];

function request(schedule) {
  const kernel = kernelOf();
  const sizes = sizesOf(kernel.sizes.map(({ name, default: typical }) => [name, state.sizes[name] ?? typical]));
  const { text, dtype, arch } = state;
  return { do: "compile", text, file: `${state.example}.rs`, kernel: kernel.name, dtype, arch, sizes, schedule };
}

const settings = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
const isWhole = (text) => settings(text)[0] === "defaults";

// The schedule of code that must be there at once: the last one with what is asked for changed in
// it, or the defaults.
function soon() {
  if (isWhole(state.schedule)) return [state.schedule];
  const asked = settings(state.schedule);
  const names = asked.map((part) => part.split("=")[0]);
  const defaults = ["defaults", ...asked].join(",");
  if (!shown || shown.kernel !== kernelOf().name || shown.arch !== state.arch) return [defaults];
  const last = settings(shown.schedule).filter((part) => !names.includes(part.split("=")[0]));
  return [[...last, ...asked].join(","), defaults];
}

let wanted = 0;
let busy = false;
let timer = 0;

// Something has changed: what is shown must follow.
async function changed(wrong = "") {
  wanted += 1;
  notice = wrong;
  say("Compiling");
  remember();
  clearTimeout(timer);
  slow.stop();
  // Most answers of `quick` are there before a new worker would be: it is stopped only if it is slow.
  quick.stop(busy ? LONG_MS : 0);
  if (busy) return;
  busy = true;
  for (let round = -1; round !== wanted;) {
    round = wanted;
    try {
      await atOnce(() => round !== wanted);
    } catch (error) {
      fail(error.message);
    }
  }
  busy = false;
}

async function atOnce(isOld) {
  const check = await quick.ask({ do: "check", text: state.text });
  if (!check || isOld()) return;
  checked = check.answer;
  showChecked();
  const errors = checked.diagnostics.filter((d) => d.severity === "error").length;
  if (errors) return fail(`${errors} error${errors > 1 ? "s" : ""} in the text`);
  if (!checked.kernels.length) return fail("the text has no kernel; write `pub fn name(...) { ... }`");
  let answered;
  for (const schedule of soon()) {
    const compiled = request(schedule);
    answered = await quick.ask(compiled);
    if (!answered || isOld()) return;
    if (!answered.answer.error) {
      show(compiled, answered, isWhole(state.schedule) ? "" : "; the cost model's choice follows");
      break;
    }
  }
  if (isWhole(state.schedule)) return answered.answer.error && refuse(answered.answer.error);
  timer = setTimeout(chosen, PAUSE_MS);
}

// The schedule that the cost model chooses.
async function chosen() {
  const compiled = request(state.schedule);
  try {
    const answered = await slow.ask(compiled);
    if (!answered) return;
    if (answered.answer.error) return refuse(answered.answer.error);
    show(compiled, answered, ", the cost model's choice");
  } catch (error) {
    fail(error.message);
  }
}

function show(compiled, { answer, milliseconds }, note) {
  shown = { ...answer, kernel: compiled.kernel, arch: compiled.arch, request: compiled };
  const fallback = answer.fallback ? `; ${answer.fallback}` : "";
  say(`Compiled in ${milliseconds.toFixed(0)} ms${note}${fallback}`);
  $("chosen").textContent = answer.schedule;
  $("command").textContent = answer.command;
  showDiagnostics();
  showTab();
}

function refuse(error) {
  fail([error.message, ...error.reasons.filter((reason) => !error.message.includes(reason))].join("\n"));
}

// What is shown stays, and is marked as old.
function fail(text) {
  say(text, true);
  $("view").classList.add("stale");
}

// ---- the text

const TOKENS = /(\/\/[^\n]*)|\b(pub|fn|let|mut|for|in|const|if|else|flash_kernel)\b|\b(\d[\d_.]*(?:e-?\d+)?)\b/g;

function showText() {
  const text = state.text;
  const ranges = [];
  for (const found of text.matchAll(TOKENS)) {
    const kind = found[1] ? "comment" : found[2] ? "keyword" : "number";
    ranges.push([found.index, found.index + found[0].length, kind]);
  }
  for (const d of checked.diagnostics) {
    if (d.start !== null) ranges.push([d.start, Math.max(d.end, d.start + 1), d.severity]);
  }
  const lines = text.split("\n");
  if (here !== null && here <= lines.length) {
    const start = lines.slice(0, here - 1).reduce((sum, line) => sum + line.length + 1, 0);
    ranges.push([start, start + lines[here - 1].length, "here"]);
  }
  const cuts = [...new Set([0, text.length, ...ranges.flatMap(([from, to]) => [from, to])])].sort((a, b) => a - b);
  const pieces = cuts.slice(1).map((to, n) => {
    const classes = ranges.filter(([from, end]) => from <= cuts[n] && to <= end).map((range) => range[2]);
    const piece = text.slice(cuts[n], to);
    return classes.length ? element("span", { class: classes.join(" ") }, piece) : piece;
  });
  $("marks").replaceChildren(...pieces, "\n");
  $("numbers").textContent = lines.map((_, n) => n + 1).join("\n") + "\n";
  follow();
}

function follow() {
  const text = $("text");
  $("marks").scrollTop = $("numbers").scrollTop = text.scrollTop;
  $("marks").scrollLeft = text.scrollLeft;
}

function showChecked() {
  const names = checked.kernels.map((k) => k.name);
  if (names.length && !names.includes(state.kernel)) state.kernel = names[0];
  if (names.length) options($("kernel"), names, state.kernel);
  $("kernel").parentElement.hidden = names.length < 2;
  if (names.length) showSizes();
  showDiagnostics();
  showText();
}

function showDiagnostics() {
  const hints = checked.diagnostics.some((d) => d.severity === "error") ? [] : (shown?.hints ?? []);
  const rows = [
    ...checked.diagnostics.map((d) => ({ ...d, more: [d.label, d.help] })),
    ...hints.map((h) => ({ ...h, severity: "hint", more: [h.because, h.instead] })),
  ];
  const row = (d) => {
    const place = d.line === null ? "" : element("button", { onclick: () => goTo(d.line, d.column) }, `${d.line}:${d.column}`);
    const words = [d.message, ...d.more.filter(Boolean)].join("; ");
    return element("li", {}, place, " ", element("span", { class: `severity-${d.severity}` }, d.severity), ` ${words}`);
  };
  $("diagnostics").replaceChildren(...rows.map(row));
}

function goTo(line, column = 1) {
  const lines = state.text.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, l) => sum + l.length + 1, 0) + column - 1;
  const text = $("text");
  text.focus();
  text.setSelectionRange(at, at);
  text.scrollTop = Math.max(0, (line / lines.length) * text.scrollHeight - text.clientHeight / 2);
  follow();
}

// ---- sizes

// Steps of a slider: eight to an octave for lengths that loops walk, four for others.
const perOctave = (size) => (size.walked ? 8 : 4);
const ofStep = (step, size) => Math.max(1, Math.round(2 ** (step / perOctave(size))));
const toStep = (value, size) => Math.round(Math.log2(Math.max(1, value)) * perOctave(size));
const isSize = (value) => Number.isInteger(value) && value >= 0 && value < 2 ** 31;

function showSizes() {
  const kernel = kernelOf();
  const of = JSON.stringify(kernel.sizes);
  if ($("sizes").dataset.of !== of) {
    $("sizes").dataset.of = of;
    $("sizes").replaceChildren(...kernel.sizes.flatMap(rowOf));
  }
  for (const size of kernel.sizes) fill(size);
}

function rowOf(size) {
  const what = size.const ? "constant" : size.walked ? "length" : "size";
  const most = (size.walked ? 17 : size.const ? 10 : 8) * perOctave(size);
  const set = (value) => {
    mark(size, isSize(value) ? "" : `${size.name} is a whole number from 0 to 2^31 - 1`);
    if (!isSize(value)) return;
    state.sizes[size.name] = value;
    fill(size);
    changed();
  };
  const slide = (event) => set(ofStep(Number(event.target.value), size));
  return [
    element("label", { for: `size-${size.name}`, title: what }, size.name),
    element("input", {
      type: "range", min: 0, max: most, step: 1, id: `slide-${size.name}`, "aria-label": `${size.name}, ${what}`, oninput: slide,
    }),
    element("input", {
      type: "number", min: 0, id: `size-${size.name}`, "aria-describedby": `wrong-${size.name}`,
      oninput: (event) => set(event.target.valueAsNumber), onblur: (event) => event.target.isConnected && fill(size),
    }),
    element("span", { class: "wrong", id: `wrong-${size.name}`, role: "alert" }),
  ];
}

// Says what is wrong with the number in the box of a size.
function mark(size, wrong) {
  $(`size-${size.name}`).setAttribute("aria-invalid", wrong !== "");
  $(`wrong-${size.name}`).textContent = wrong;
}

function fill(size) {
  const value = state.sizes[size.name] ?? size.default;
  const [number, slide] = [$(`size-${size.name}`), $(`slide-${size.name}`)];
  if (document.activeElement !== number) {
    number.value = value;
    mark(size, "");
  }
  if (document.activeElement !== slide) slide.value = toStep(value, size);
}

// ---- tabs

const stage = (name) => shown.stages.find((s) => s.name === name)?.text ?? "";
const TABS = {
  Masks: () => [...shown.pictures.flatMap(picture), heading("What is known of the tiles"), plain(stage("masks"))],
  Dependences: () => [graph(shown.graph), plain(stage("dependences"))],
  IR: () => [plain(stage("ir"))],
  Normal: () => [plain(stage("normal"))],
  Plan: () => [plain(stage("plan"))],
  CUDA: cuda,
  Layouts: layouts,
  Cost: cost,
  Knobs: knobs,
  Result: result,
};

function makeTabs() {
  const tab = (name) => element("button", { role: "tab", "aria-controls": "view", onclick: () => choose(name) }, name);
  $("tabs").replaceChildren(...Object.keys(TABS).map(tab));
  $("tabs").onkeydown = (event) => {
    const all = [...event.currentTarget.children];
    const at = all.indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const tab = all.at(to % all.length);
    tab.focus();
    choose(tab.textContent);
  };
}

function showTabs() {
  for (const tab of $("tabs").children) {
    const chosen = tab.textContent === state.tab;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
}

function choose(name) {
  state.tab = name;
  remember();
  showTabs();
  showTab();
  $("view").scrollTop = 0;
}

function showTab() {
  if (!shown) return;
  const view = $("view");
  const [top, left] = [view.scrollTop, view.scrollLeft];
  // What has the focus is replaced: the first button of the same row, or of the view, gets it.
  const focused = document.activeElement;
  const row = focused !== view && view.contains(focused) && focused.closest("[id]").id;
  view.classList.remove("stale");
  view.setAttribute("aria-label", state.tab);
  view.replaceChildren(...TABS[state.tab]());
  if (row) ($(row)?.querySelector("button") ?? view).focus({ preventScroll: true });
  [view.scrollTop, view.scrollLeft] = [top, left];
  if (state.tab === "CUDA") showHere();
}

const TILES = [["#", "full", "--full"], ["/", "cut by the mask", "--cut"], [".", "hidden, never read", "--hidden"]];

function picture(of) {
  if (of.why) return [heading(`Tiles of the loop over ${of.loop}`), element("p", {}, `No picture: ${of.why}.`)];
  const [down, across] = [of.tiles.length, of.tiles[0]?.length ?? 0];
  const cell = Math.max(2, Math.min(24, Math.floor(560 / Math.max(down, across, 1))));
  const all = of.tiles.join("");
  const counts = TILES.map(([mark, name, hue]) => ({ name, hue, mark, count: all.split(mark).length - 1 }));
  const words = counts.map(({ name, count }) => `${count} ${name}`).join(", ");
  const canvas = element("canvas", {
    class: "picture", width: across * cell + 1, height: down * cell + 1, role: "img", "aria-label": words,
    "data-tiles": of.tiles.join("\n"),
  });
  const pen = canvas.getContext("2d");
  const hues = Object.fromEntries(counts.map(({ mark, hue }) => [mark, color(hue)]));
  pen.fillStyle = color("--line");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const gap = cell > 4 ? 1 : 0;
  of.tiles.forEach((line, row) =>
    [...line].forEach((mark, column) => {
      pen.fillStyle = hues[mark];
      pen.fillRect(column * cell + gap, row * cell + gap, cell - gap, cell - gap);
    }));
  const key = counts.map(({ name, hue, count }) =>
    element("span", {}, element("i", { style: `background: var(${hue})` }), `${count} ${name}`));
  return [
    heading(`Tiles of the loop over ${of.loop}`),
    element("p", {}, `${of.block_rows} positions of ${of.rows} down, ${of.block_columns} of ${of.loop} across`),
    canvas,
    element("p", { class: "key" }, ...key),
  ];
}

// Statements from top to bottom. Flow within an iteration is on the left, flow from one iteration
// to the next on the right.
function graph({ statements, components, edges }) {
  const [row, left] = [26, 90];
  const y = (n) => n * row + row / 2;
  const wide = Math.max(...statements.map((s, n) => `S${n + 1}  ${s}`.length)) * 7.3 + 16;
  const arc = ({ from, to, carried }) => {
    const side = carried === null ? -1 : 1;
    const x = carried === null ? left : left + wide;
    const far = x + side * Math.min(left - 10, 14 + 8 * Math.abs(to - from));
    const [a, b] = [y(from) + 5, y(to) - 5];
    const made = drawn("path", {
      d: `M${x} ${a} C${far} ${a} ${far} ${b} ${x + side * 2} ${b}`, class: carried === null ? "flow" : "carried", "marker-end": "url(#arrow)",
    });
    made.append(drawn("title", {}, `S${from + 1} to S${to + 1}${carried === null ? "" : `, carried by ${carried}`}`));
    return made;
  };
  const groups = components.filter((of) => of.length > 1).map((of) => {
    const [first, last] = [Math.min(...of), Math.max(...of)];
    return drawn("rect", { class: "group", x: left - 4, y: first * row + 1, width: wide + 8, height: (last - first + 1) * row - 2, rx: 5 });
  });
  const box = (text, n) => [
    drawn("rect", { x: left, y: n * row + 3, width: wide, height: row - 6, rx: 3 }),
    drawn("text", { x: left + 8, y: y(n) + 4 }, `S${n + 1}  ${text}`),
  ];
  const arrow = drawn("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
    drawn("path", { d: "M0 0L8 4L0 8", style: "fill: var(--soft); stroke: none" }));
  const svg = drawn("svg", { class: "graph", width: left + wide + 100, height: statements.length * row + 4, role: "img" },
    drawn("title", {}, "Dependences between statements"), drawn("defs", {}, arrow),
    ...statements.flatMap(box), ...groups, ...edges.map(arc));
  const key = "Solid: flow within an iteration. Dashed: flow to the next iteration. Framed: statements that need each other.";
  return element("div", {}, svg, element("p", { class: "key" }, key));
}

// CUDA C, each line with the line of the text that it comes from.
function cuda() {
  const text = stage("cuda");
  let line = null;
  const rows = text.split("\n").map((row) => {
    const found = /^\s*#line (\d+) /.exec(row);
    if (found) line = Number(found[1]);
    const kind = found ? "line directive" : "line";
    return element("span", { class: kind, "data-line": line }, row || " ");
  });
  const of = (event) => Number(event.target.closest("[data-line]")?.dataset.line) || null;
  const listing = element("pre", {
    onmouseover: (event) => point(of(event)), onmouseleave: () => point(null), onclick: (event) => of(event) && goTo(of(event)),
  }, ...rows);
  const copy = element("button", { onclick: () => navigator.clipboard.writeText(text) }, "Copy");
  const words = " A line that is pointed at shows the line of the text that it comes from; a click goes there.";
  return [element("p", {}, copy, words), listing];
}

function point(line) {
  if (line === here) return;
  here = line;
  showText();
}

// Lines of CUDA C that come from the caret's line.
function showHere() {
  const text = $("text");
  const line = text.value.slice(0, text.selectionStart).split("\n").length;
  const rows = [...$("view").querySelectorAll(".line")];
  const own = rows.filter((row) => Number(row.dataset.line) === line);
  rows.forEach((row) => row.classList.toggle("here", own.includes(row)));
  if (document.activeElement === text && own.length) $("view").scrollTop = own[0].offsetTop - $("view").offsetTop - 40;
}

function layouts() {
  if (!shown.layouts.length) return [element("p", {}, "No tile is in shared memory.")];
  return shown.layouts.flatMap(({ name, svg }) => {
    const figure = element("div", { class: "layout" });
    figure.innerHTML = svg;
    return [heading(name), figure];
  });
}

function seconds(value) {
  const [unit, scale] = value < 1e-6 ? ["ns", 1e9] : value < 1e-3 ? ["µs", 1e6] : value < 1 ? ["ms", 1e3] : ["s", 1];
  return `${(value * scale).toPrecision(3)} ${unit}`;
}

function cost() {
  const { limits, predicted } = shown.roofline;
  const rows = [...limits.map(({ name, seconds }) => ({ name, seconds })), ...(predicted === null ? [] : [{ name: "predicted", seconds: predicted }])];
  const most = Math.max(...rows.map((r) => r.seconds));
  const bars = rows.flatMap(({ name, seconds: time }) => [
    element("span", {}, name),
    element("div", { class: name === "predicted" ? "bar predicted" : "bar", style: `width: ${(100 * time) / most}%` }),
    element("span", {}, seconds(time)),
  ]);
  const table = shown.resources.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", { class: "number" }, value)));
  return [
    heading("Roofline"),
    element("p", {}, "The least time in which a typical machine does each kind of work, and the time that the cost model predicts."),
    element("div", { class: "bars" }, ...bars),
    heading("What a block takes, as predicted"), element("table", {}, ...table),
    heading("Work"), plain(stage("cost")),
  ];
}

// ---- knobs

let opened = null;

function knobs() {
  const row = (knob) => {
    const values = element("div", { class: "values" });
    const open = element("button", { "aria-expanded": opened === knob.name, onclick: () => turn(knob.name) }, shown.knobs[knob.name]);
    if (opened === knob.name) fillValues(knob.name, values);
    const cells = [element("code", {}, knob.name), [open, values], knob.doc].map((cell) => element("td", {}, ...[cell].flat()));
    return element("tr", { id: `knob-${knob.name}` }, ...cells);
  };
  const head = element("tr", {}, ...["Knob", "Value", "What it does"].map((name) => element("th", {}, name)));
  const words = "A value opens the list of all values, each with the reasons against it.";
  return [element("p", {}, words), element("table", {}, head, ...about.knobs.map(row))];
}

function turn(name) {
  opened = opened === name ? null : name;
  showTab();
}

async function fillValues(name, into) {
  const of = shown;
  try {
    const answered = await quick.ask({ ...of.request, do: "knob", schedule: of.schedule, knob: name });
    if (!answered) return;
    const { answer } = answered;
    if (answer.error) return refuse(answer.error);
    into.replaceChildren(...answer.values.map(({ value, current, reasons }) => {
      const pick = element("button", { "aria-pressed": current, disabled: reasons.length ? "" : null, onclick: () => set(name, value) }, value);
      return element("div", {}, pick, " ", element("span", { class: "against" }, reasons.join("; ")));
    }));
  } catch (error) {
    fail(error.message);
  }
}

function set(name, value) {
  const others = settings(state.schedule).filter((part) => part.split("=")[0] !== name);
  state.schedule = [...others, `${name}=${value}`].join(",");
  $("schedule").value = state.schedule;
  opened = null;
  changed();
}

// ---- the interpreter

function result() {
  const into = element("div", {}, element("p", {}, "Running."));
  interpret(into);
  return [into];
}

async function interpret(into) {
  const intro = "The interpreter, which defines what kernel text means, on small random tensors";
  try {
    const answered = await slow.ask({ ...shown.request, do: "run", schedule: "" });
    if (!answered) return;
    const { answer, milliseconds } = answered;
    if (answer.error) return into.replaceChildren(element("p", {}, `${intro}: ${answer.error.message}`));
    const words = Object.entries(answer.sizes).map(([name, value]) => `${name}=${value}`).join(", ");
    const each = answer.outputs.flatMap(({ name, type, shape, rows, error }) => [
      heading(`${name}: ${type} [${shape.join(", ")}]`),
      element("p", {}, `Largest difference from exact arithmetic: ${error?.toExponential(2) ?? "not finite"}. The first rows and columns:`),
      element("table", {}, ...rows.map((row) => element("tr", {}, ...row.map((x) => element("td", { class: "number" }, number(x)))))),
    ]);
    into.replaceChildren(element("p", {}, `${intro}: ${words}. ${milliseconds.toFixed(0)} ms.`), ...each);
  } catch (error) {
    fail(error.message);
  }
}

const number = (x) => (x === null ? "not finite" : Number.isInteger(x) ? String(x) : x.toPrecision(5));

// ---- the state in the address

const through = async (bytes, stream) =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

async function address() {
  const { text, ...rest } = state;
  const said = text === examples[state.example] ? rest : { ...rest, text };
  const bytes = await through(new TextEncoder().encode(JSON.stringify(said)), new CompressionStream("deflate-raw"));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

const isText = (said) => typeof said === "string";
const isObject = (said) => typeof said === "object" && said !== null && !Array.isArray(said);
const isKnob = (part) => part === "defaults" || about.knobs.some(({ name }) => name === part.split("=")[0].trim().split(".").at(-1));
// What an address may say. Anybody may have written it.
const KNOWN = {
  example: (said) => Object.keys(examples).includes(said),
  text: isText,
  kernel: isText,
  dtype: (said) => about.dtypes.includes(said),
  arch: (said) => about.archs.includes(said),
  sizes: isObject,
  schedule: isText,
  tab: (said) => Object.keys(TABS).includes(said),
};

// Takes the state from an address, and tells what of it is not known and left out.
async function restore(hash) {
  if (!hash) return "";
  const packed = Uint8Array.from(atob(hash.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const said = JSON.parse(new TextDecoder().decode(await through(packed, new DecompressionStream("deflate-raw"))));
  if (!isObject(said)) throw new Error("not a state");
  const out = [];
  const take = (what, value, known) => {
    if (!known) out.push(`${what} ${JSON.stringify(value)}`.slice(0, 60));
    return known;
  };
  const taken = first();
  for (const [key, isKnown] of Object.entries(KNOWN)) {
    if (Object.hasOwn(said, key) && take(key, said[key], isKnown(said[key]))) taken[key] = said[key];
  }
  taken.sizes = sizesOf(Object.entries(taken.sizes).filter(([name, value]) => take(`size ${name}`, value, isSize(value))));
  taken.schedule = settings(taken.schedule).filter((part) => take("knob", part, isKnob(part))).join(",");
  if (!isText(said.text)) taken.text = examples[taken.example];
  Object.assign(state, taken);
  const more = out.length > 5 ? ", and more" : "";
  return out.length ? `Left out of the address, since not known here: ${out.slice(0, 5).join(", ")}${more}. ` : "";
}

let saving = 0;
function remember() {
  clearTimeout(saving);
  saving = setTimeout(save, 200);
}

async function save() {
  const own = saving;
  const hash = await address();
  if (own === saving) history.replaceState(null, "", `#${hash}`);
}

// A text of one's own stays in the history, so that Back leads to it.
async function keepText() {
  if (state.text === examples[state.example]) return;
  await save();
  history.pushState(null, "", location.href);
}

// ---- start

function showInput() {
  $("example").replaceChildren(...Object.entries(library).map(([group, texts]) =>
    element("optgroup", { label: group }, ...Object.keys(texts).map((name) => element("option", { value: name }, name)))));
  $("example").value = state.example;
  $("text").value = state.text;
  $("schedule").value = state.schedule;
  options($("dtype"), about.dtypes, state.dtype);
  options($("arch"), about.archs, state.arch);
}

function listen() {
  $("example").onchange = async () => {
    const example = $("example").value;
    await keepText();
    Object.assign(state, { example, text: examples[example], kernel: "", sizes: sizesOf([]), schedule: "" });
    $("text").value = state.text;
    $("schedule").value = "";
    $("text").scrollTop = 0;
    changed();
  };
  for (const name of ["kernel", "dtype", "arch", "schedule"]) {
    $(name).oninput = (event) => {
      state[name] = event.target.value;
      changed();
    };
  }
  $("text").oninput = (event) => {
    state.text = event.target.value;
    showText();
    changed();
  };
  $("text").onscroll = follow;
  // A new line begins where the last one did. The key Tab is left to those who move by keys.
  $("text").onkeydown = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    const before = $("text").value.slice(0, $("text").selectionStart);
    const indent = /[^\n]*$/.exec(before)[0].match(/^ */)[0];
    document.execCommand("insertText", false, `\n${indent}${/[{(]\s*$/.test(before) ? "    " : ""}`);
  };
  document.addEventListener("selectionchange", () => {
    if (state.tab === "CUDA" && document.activeElement === $("text")) showHere();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTab);
  // Another address, or a step in the history.
  addEventListener("popstate", async () => {
    clearTimeout(saving);
    saving = 0;
    if (location.hash.slice(1) !== (await address())) await begin();
  });
}

async function begin() {
  let wrong;
  try {
    wrong = await restore(location.hash.slice(1));
  } catch {
    wrong = "The address of this page does not hold a kernel. ";
  }
  showInput();
  showTabs();
  showText();
  await changed(wrong);
}

try {
  const module = await moduleOfPage();
  [quick, slow] = [new Compiler(module), new Compiler(module)];
  about = (await quick.ask({ do: "about" })).answer;
  makeTabs();
  listen();
  await begin();
} catch (error) {
  say(`the compiler did not start: ${error.message}; the page needs a browser of 2023 or later`, true);
}
