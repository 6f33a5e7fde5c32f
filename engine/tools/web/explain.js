"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const drawing = report.drawing;
const SVG = "http://www.w3.org/2000/svg";
const CARD = { width: 196, height: 36 };
const KINDS = [
  ["gpu", "gpu", "GPU"],
  ["cpu", "cpu", "CPU"],
  ["host-shape", "shape", "sizes (CPU)"],
  ["view", "none", "another shape"],
  ["folded", "none", "known when planning"],
];
const STYLE = Object.fromEntries(KINDS.map(([device, style]) => [device, style]));
const find = (id) => document.getElementById(id);
const stage = find("stage"), svg = find("drawing"), tip = find("tip");

// Text

const milliseconds = (ms) =>
  ms === null || ms === undefined ? "–" : `${ms < 1 ? ms.toFixed(3) : ms < 100 ? ms.toFixed(2) : ms.toFixed(0)} ms`;
const bytes = (n) =>
  n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`;
const share = (x) => {
  if (x === 0 || x === 1) return `${100 * x} %`;
  const percent = Math.min(Math.max(100 * x, 0.1), 99.9);
  return `${percent.toFixed(percent >= 1 && percent <= 99 ? 0 : 1)} %`;
};
const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1 - (most >> 1))}…${text.slice(-(most >> 1))}`);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return fill(made, attributes, children);
}
function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((c) => c !== null));
  return made;
}

const FACE = getComputedStyle(document.body).fontFamily;
const BOLD = `600 12px ${FACE}`, SMALL = `10.5px ${FACE}`;
const ruler = document.createElement("canvas").getContext("2d");
function width(text, font) {
  ruler.font = font;
  return ruler.measureText(text).width;
}
function squeeze(text, font, room) {
  let whole = width(text, font), most = text.length, shown = text;
  while (whole > room && most > 3) {
    most = Math.max(3, Math.min(most - 1, Math.floor((most * room) / whole)));
    shown = cut(text, most);
    whole = width(shown, font);
  }
  return shown;
}

// What reads and writes what

const makerOf = new Map();
report.nodes.forEach((node, i) => node.outputs.forEach((name) => name && makerOf.set(name, i)));
const readersOf = new Map();
report.nodes.forEach((node, i) => {
  for (const name of new Set(node.inputs)) {
    if (name) readersOf.set(name, [...(readersOf.get(name) ?? []), i]);
  }
});
const valueText = (name) => {
  const value = report.values[name];
  if (!value) return "";
  if (!value.dtype) return "not a tensor";
  const dims = value.shape === null ? "?" : value.shape.join(", ");
  const sizes = value.sizes && value.shape.some((d) => typeof d === "string") ? ` = [${value.sizes.join(", ")}]` : "";
  return `${value.dtype}[${dims}]${sizes}${value.constant ? ", constant" : ""}`;
};
const groupOf = (node) => (node.fused_into ? node.kernels.map((k) => report.kernels[k]) : []);

// The drawing

const world = shape("g", { id: "world" });
const layers = Object.fromEntries(
  ["bands", "groups", "edges", "cards", "labels", "amounts", "picked"].map((name) => [name, shape("g", { id: name })]),
);
world.append(...Object.values(layers));
svg.append(world);

const cards = report.nodes.map((node, i) => {
  const [x, y] = drawing.nodes[i];
  const card = shape(
    "g",
    { class: `card ${STYLE[node.device]}`, transform: `translate(${x} ${y})`, "data-node": i },
    shape("rect", { width: CARD.width, height: CARD.height }),
  );
  const ms = node.measured_ms ?? node.predicted_ms;
  const told = node.fused_into && report.kernels[node.kernels[0]].nodes[0] !== node.key;
  const time = ms === null || told ? "" : milliseconds(ms);
  const room = CARD.width - 16 - (time ? width(time, SMALL) + 8 : 0);
  const op = text(8, 15, "op", squeeze(node.op_type, BOLD, CARD.width - 16));
  op.style.setProperty("--big", `${Math.min(19, (12 * (CARD.width - 16)) / width(op.textContent, BOLD))}px`);
  card.append(op);
  card.append(text(8, 29, "name", squeeze(node.name, SMALL, room)));
  if (time) card.append(text(CARD.width - 8, 29, "ms", time));
  layers.cards.append(card);
  return card;
});
function text(x, y, style, content) {
  const made = shape("text", { x, y, class: style });
  made.textContent = content;
  return made;
}

const ends = drawing.ends.map((end, i) => {
  const made = shape(
    "g",
    { class: "end", transform: `translate(${end.x} ${end.y})`, "data-end": i },
    shape("rect", { width: end.width, height: end.height }),
    text(end.width / 2, end.height / 2 + 4, "", cut(`${end.kind} ${end.name}`, 24)),
  );
  layers.cards.append(made);
  return made;
});

for (const band of drawing.bands) {
  if (band.subgraph < 0) continue;
  const part = report.subgraphs[band.subgraph];
  const kernels = part.kernels ? `, ${plural(part.kernels, "kernel")}` : "";
  const ms = part.measured_ms === null ? part.predicted_ms : part.measured_ms;
  const label = `${part.device.toUpperCase()} ${band.subgraph}` +
    (band.first ? `: ${plural(part.nodes, "node")}${kernels}, ${milliseconds(ms)}` : " (continued)");
  layers.bands.append(
    shape("rect", { ...pick(band, "x", "y", "width", "height"), class: `band ${part.device}`, "data-subgraph": band.subgraph }),
  );
  layers.labels.append(
    text(band.x + 8, band.y - 5, `band-label near ${part.device}`, squeeze(label, BOLD, Math.max(band.width, 160))),
    text(band.x + 4, band.y - 5, `band-label away ${part.device}`, `${part.device.toUpperCase()} ${band.subgraph}${band.first ? "" : " …"}`),
  );
}
for (const group of drawing.groups) {
  layers.groups.append(shape("rect", { ...pick(group, "x", "y", "width", "height"), class: "group", "data-kernel": group.kernel }));
}
function pick(source, ...names) {
  return Object.fromEntries(names.map((name) => [name, source[name]]));
}

const anchor = (index, name, kind) => {
  if (index >= 0) {
    const [x, y] = drawing.nodes[index];
    return { x: x + CARD.width / 2, top: y, bottom: y + CARD.height };
  }
  const end = drawing.ends.find((e) => e.kind === kind && e.name === name);
  return end && { x: end.x + end.width / 2, top: end.y, bottom: end.y + end.height };
};
const stubs = new Map();
const edges = drawing.edges.map((edge, i) => {
  const moves = edge.transfer ? " moves" : "";
  const parts = [];
  if (edge.path) {
    parts.push(shape("path", { class: `edge${moves}`, d: edge.path, "data-edge": i }));
  } else {
    const start = anchor(edge.from, edge.value, "input"), end = anchor(edge.to, edge.value, "output");
    const before = stubs.get(edge.to) ?? 0;
    stubs.set(edge.to, before + 1);
    const x = end.x - 92 + 11 * before;
    parts.push(shape("path", { class: `stub${moves}`, d: `M${start.x + 84} ${start.bottom}h8l-4 9z`, "data-edge": i }));
    parts.push(shape("path", { class: `stub${moves}`, d: `M${x} ${end.top - 9}h8l-4 9z` }));
    if (!before) {
      const from = edge.from >= 0 ? report.nodes[edge.from].name : edge.value;
      parts.push(text(x - 2, end.top - 12, "from", squeeze(`from ${from}`, SMALL, 150)));
    }
  }
  layers.edges.append(...parts);
  return parts;
});

const told = new Set(), amounts = [];
drawing.edges.forEach((edge) => {
  const key = `${edge.transfer} ${edge.from} ${edge.value}`;
  if (!edge.transfer || told.has(key)) return;
  told.add(key);
  const up = edge.transfer === "upload";
  const at = up ? anchor(edge.to, edge.value, "output") : anchor(edge.from, edge.value, "input");
  const label = `${up ? "▲" : "▼"} ${bytes(edge.nbytes)}`;
  const long = 14 + width(label, SMALL) * 1.06;
  const y = up ? at.top - 19 : at.bottom + 4;
  const made = shape(
    "g",
    { class: "amount", "data-value": edge.value },
    shape("rect", { x: at.x - long / 2, y, width: long, height: 16 }),
    text(at.x, y + 12, "", label),
  );
  made.append(shape("title"));
  made.lastChild.textContent = `${edge.transfer} of ${edge.value}, ${bytes(edge.nbytes)} a call`;
  layers.amounts.append(made);
  amounts.push([made, edge]);
});

// Moving about

const view = { x: 0, y: 0, scale: 1 };
function apply() {
  world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  svg.classList.toggle("far", view.scale < 0.3);
  svg.classList.toggle("middle", view.scale >= 0.3 && view.scale < 0.6);
}
let moved = false;
function fit() {
  moved = false;
  const { width, height } = stage.getBoundingClientRect();
  view.scale = Math.min(1.2, width / (drawing.width + 40), height / (drawing.height + 50));
  view.x = (width - drawing.width * view.scale) / 2;
  view.y = (height - (drawing.height - 14) * view.scale) / 2;
  apply();
}
function zoom(factor, x, y) {
  moved = true;
  const scale = Math.min(Math.max(view.scale * factor, 0.02), 4);
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  apply();
}
function zoomMiddle(factor) {
  const { width, height } = stage.getBoundingClientRect();
  zoom(factor, width / 2, height / 2);
}
function show(x, y, least = 0.8) {
  moved = true;
  const { width, height } = stage.getBoundingClientRect();
  view.scale = Math.max(view.scale, least);
  view.x = width / 2 - x * view.scale;
  view.y = height / 2 - y * view.scale;
  apply();
}
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });

const fingers = new Map();
let travelled = 0;
svg.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  travelled = 0;
});
svg.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
  travelled += Math.abs(dx) + Math.abs(dy);
  if (travelled > 4 && !svg.hasPointerCapture(event.pointerId)) {
    svg.setPointerCapture(event.pointerId);
    svg.classList.add("moving");
  }
  if (fingers.size === 2) {
    const other = [...fingers.values()].find((f) => f.pointerId !== event.pointerId);
    const apart = (f) => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY);
    const box = stage.getBoundingClientRect();
    zoom(apart(event) / Math.max(apart(before), 1), other.clientX - box.left, other.clientY - box.top);
  } else if (travelled > 4) {
    moved = true;
    view.x += dx;
    view.y += dy;
    apply();
  }
  fingers.set(event.pointerId, event);
});
for (const kind of ["pointerup", "pointercancel"]) {
  svg.addEventListener(kind, (event) => {
    fingers.delete(event.pointerId);
    svg.classList.remove("moving");
  });
}

// One node

let picked = null;
function select(i, moveThere = true) {
  unselect();
  picked = i;
  cards[i].classList.add("picked");
  drawing.edges.forEach((edge, e) => {
    if (edge.from !== i && edge.to !== i) return;
    edges[e].forEach((part) => part.classList.add("reader"));
    if (!edge.path) {
      const start = anchor(edge.from, edge.value, "input"), end = anchor(edge.to, edge.value, "output");
      layers.picked.append(shape("path", { class: "edge reader", d: `M${start.x} ${start.bottom}L${end.x} ${end.top}` }));
    }
  });
  describe(report.nodes[i]);
  if (moveThere) show(drawing.nodes[i][0] + CARD.width / 2, drawing.nodes[i][1] + CARD.height / 2);
}
function unselect() {
  if (picked !== null) cards[picked].classList.remove("picked");
  picked = null;
  for (const part of layers.edges.querySelectorAll(".reader")) part.classList.remove("reader");
  layers.picked.replaceChildren();
  find("node").hidden = true;
}
const badge = (node) => {
  const [, style, label] = KINDS.find(([device]) => device === node.device);
  return element("span", { class: `badge ${style}` }, label);
};
const link = (i, label) => element("button", { class: "link", "data-go": i, onclick: () => select(i) }, label);
function row(name, ...content) {
  return element("tr", {}, element("th", {}, name), element("td", {}, ...content));
}
function valueRows(names, title, others) {
  return names.filter((n) => n).map((name, i) => {
    const cell = element("td", {}, element("div", {}, name), element("div", { class: "note" }, valueText(name)));
    const found = others(name).filter((n) => n !== undefined);
    found.slice(0, 12).forEach((n, k) => cell.append(...(k ? [", "] : []), link(n, `${report.nodes[n].op_type} ${cut(report.nodes[n].name, 30)}`)));
    if (found.length > 12) cell.append(` and ${found.length - 12} more`);
    if (report.inputs.includes(name)) cell.append(element("div", { class: "note" }, "input of the graph"));
    if (report.outputs.includes(name)) cell.append(element("div", { class: "note" }, "output of the graph"));
    return element("tr", {}, element("th", {}, `${title} ${i}`), cell);
  });
}
function describe(node) {
  const table = element("table");
  table.append(row("name", node.name));
  if (node.reason) table.append(row("reason", node.reason));
  if (node.subgraph !== null) table.append(row("subgraph", `${node.subgraph} on the ${report.subgraphs[node.subgraph].device.toUpperCase()}`));
  const whole = node.fused_into ? " (all that is fused)" : "";
  if (node.predicted_ms !== null) table.append(row("predicted", milliseconds(node.predicted_ms) + whole));
  if (node.measured_ms !== null) table.append(row("measured", milliseconds(node.measured_ms) + whole));
  if (node.fused_into) {
    const cell = element("td", {}, element("div", {}, node.fused_into));
    for (const key of groupOf(node)[0].nodes) {
      const i = makerOf.get(key);
      if (report.nodes[i] !== node) cell.append(element("div", {}, link(i, `${report.nodes[i].op_type} ${report.nodes[i].name}`)));
    }
    table.append(element("tr", {}, element("th", {}, "fused with"), cell));
  }
  for (const body of report.bodies.filter((b) => b.path[0] === node.key)) {
    const where = body.gpu_nodes === null ? "planned when it first runs" : `${body.gpu_nodes} on the GPU, ${body.cpu_nodes} on the CPU`;
    table.append(row(body.path.slice(1).join(" / "), `${plural(body.nodes, "node")}, ${where}`));
  }
  table.append(...valueRows(node.inputs, "input", (name) => [makerOf.get(name)]));
  table.append(...valueRows(node.outputs, "output", (name) => readersOf.get(name) ?? []));
  const origin = node.origin.filter((name) => name && name !== node.name);
  if (origin.length) table.append(row("in the model", origin.join(", ")));
  const section = find("node");
  section.replaceChildren(
    element("h3", {}, node.op_type, badge(node), element("button", { onclick: unselect, "aria-label": "Close" }, "×")),
    table,
  );
  for (const k of node.kernels) {
    const kernel = report.kernels[k];
    const rows = element("table", {}, row("kernel", `${k}: ${kernel.label}`), row("predicted", milliseconds(kernel.predicted_ms)));
    if (kernel.measured_ms !== null) rows.append(row("measured", milliseconds(kernel.measured_ms)));
    section.append(element("h2", {}, "Kernel"), rows);
    kernel.shaders.forEach((s, i) => {
      const code = element("details", {}, element("summary", {}, `WGSL: ${kernel.shader_names[i]}${kernel.shaders.length > 1 ? ` (alternative ${i + 1} of ${kernel.shaders.length})` : ""}`));
      code.addEventListener("toggle", () => code.children.length < 2 && code.append(element("pre", {}, report.shaders[s])));
      section.append(code);
    });
  }
  section.hidden = false;
  find("side").scrollTop = 0;
}
function hint(event) {
  const card = event.target.closest?.(".card, .end");
  if (!card || svg.classList.contains("moving")) {
    tip.hidden = true;
    return;
  }
  if (card.dataset.node !== undefined) {
    const node = report.nodes[card.dataset.node];
    const ms = [node.measured_ms !== null && `measured ${milliseconds(node.measured_ms)}`, node.predicted_ms !== null && `predicted ${milliseconds(node.predicted_ms)}`].filter(Boolean).join(", ");
    tip.replaceChildren(
      element("b", {}, `${node.op_type} ${node.name}`),
      ...[
        node.reason || (node.kernels.length ? `kernel ${node.kernels.join(", ")}` : ""),
        node.fused_into && `fused: ${node.fused_into}`,
        ...node.outputs.filter((n) => n).map(valueText),
        ms,
      ].filter(Boolean).map((line) => element("span", {}, line)),
    );
  } else {
    const end = drawing.ends[card.dataset.end];
    tip.replaceChildren(element("b", {}, `${end.kind} ${end.name}`), element("span", {}, valueText(end.name)));
  }
  tip.hidden = false;
  const box = stage.getBoundingClientRect();
  const x = event.clientX - box.left + 14, y = event.clientY - box.top + 16;
  tip.style.left = `${Math.min(x, box.width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${y + tip.offsetHeight > box.height ? y - tip.offsetHeight - 26 : y}px`;
}
svg.addEventListener("pointermove", hint);
svg.addEventListener("pointerleave", () => (tip.hidden = true));
svg.addEventListener("click", (event) => {
  if (travelled > 4) return;
  const card = event.target.closest(".card");
  if (card) select(Number(card.dataset.node), false);
  else unselect();
});

// Search

let hits = [], hit = -1;
function search(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (...texts) => words.length > 0 && words.every((word) => texts.join(" ").toLowerCase().includes(word));
  const found = report.nodes.map((node) => matches(
    node.op_type, node.name, node.device, node.reason, node.fused_into, ...node.origin, ...node.inputs, ...node.outputs,
  ));
  highlight(words.length > 0, found, drawing.ends.map((end) => matches(end.kind, end.name)));
}
function highlight(searching, nodes, others = []) {
  cards.forEach((card, i) => card.classList.toggle("hit", nodes[i]));
  ends.forEach((end, i) => end.classList.toggle("hit", Boolean(others[i])));
  hits = nodes.flatMap((match, i) => (match ? [i] : []));
  hit = -1;
  svg.classList.toggle("searching", searching);
  find("found").textContent = searching ? (hits.length ? plural(hits.length, "node") : "nothing") : "";
}
function step(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  if (hit < 0) hit = hits.length - 1;
  find("found").textContent = `${hit + 1} of ${hits.length}`;
  select(hits[hit]);
}
find("search").addEventListener("input", (event) => search(event.target.value));
find("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") {
    event.target.value = "";
    search("");
    svg.focus();
  }
});
find("next").addEventListener("click", () => step(1));
find("previous").addEventListener("click", () => step(hit < 0 ? 0 : -1));

// Legend, and which devices are shown

const hidden = new Set();
for (const [device, style, label] of KINDS) {
  const count = report.nodes.filter((n) => n.device === device).length;
  if (!count) continue;
  const chip = element(
    "button",
    { "aria-pressed": "true", "data-device": device, title: `Show or hide: ${label}` },
    element("i", { class: style }), label, element("span", {}, String(count)),
  );
  chip.addEventListener("click", () => {
    hidden.has(device) ? hidden.delete(device) : hidden.add(device);
    chip.setAttribute("aria-pressed", String(!hidden.has(device)));
    filter();
  });
  find("legend").append(chip);
}
function filter() {
  const off = (i) => i >= 0 && hidden.has(report.nodes[i].device);
  cards.forEach((card, i) => card.classList.toggle("off", off(i)));
  edges.forEach((parts, e) => {
    const gone = off(drawing.edges[e].from) || off(drawing.edges[e].to);
    parts.forEach((part) => part.classList.toggle("off", gone));
  });
  const gpu = hidden.has("gpu");
  layers.groups.classList.toggle("off", gpu);
  amounts.forEach(([made, edge]) => made.classList.toggle("off", off(edge.from) || off(edge.to)));
}
function key(path, label) {
  const picture = shape("svg", { viewBox: "0 0 30 14" });
  picture.append(path);
  find("legend").append(element("span", { class: "key" }, picture, label));
}
if (report.transfers.length) key(shape("path", { class: "edge moves", d: "M0 7H30" }), "transfer");
if (drawing.groups.length) key(shape("rect", { class: "group", width: 30, height: 14 }), "fused into one kernel");

// Summary

function summarise() {
  const s = report.summary, section = find("summary");
  const tiles = element("div", { class: "tiles" });
  const tile = (value, label, wide = false) =>
    tiles.append(element("div", { class: wide ? "tile wide" : "tile" }, element("b", {}, value), element("span", {}, label)));
  tile(share(s.gpu_node_share), `of ${plural(s.gpu_nodes + s.cpu_nodes, "computing node")} on the GPU`);
  tile(share(s.gpu_work_share), "of the predicted work on the GPU");
  tile(String(s.subgraphs), `${s.subgraphs === 1 ? "subgraph" : "subgraphs"}, ${plural(s.switches, "switch")} between devices`);
  tile(String(s.kernels), `${s.kernels === 1 ? "kernel" : "kernels"} a call`);
  tile(bytes(s.upload_nbytes), `up a call, ${plural(s.uploads, "value")}`);
  tile(bytes(s.download_nbytes), `down a call, ${plural(s.downloads, "value")}`);
  tile(bytes(s.peak_nbytes), "of activations at peak");
  tile(bytes(s.weights_nbytes), "of weights, uploaded once");
  tile(milliseconds(s.predicted_ms), `predicted; all on the CPU ${milliseconds(s.all_cpu_ms)}, all that can be on the GPU ${milliseconds(s.all_gpu_ms)}`, true);
  if (report.measured) tile(milliseconds(report.measured.total_ms), `measured, median of ${plural(report.measured.calls, "call")}`, true);
  const bar = element("div", { class: "bar", title: "nodes by device" });
  for (const [device, style] of KINDS) {
    const count = report.nodes.filter((n) => n.device === device).length;
    if (count) bar.append(element("i", { class: style, style: `flex:${count};background:var(--${style})` }));
  }
  section.append(tiles, bar, element("div", { class: "note" }, report.device));
  const sizes = (binding) => Object.entries(binding).map(([name, size]) => `${name}=${size}`).join(", ");
  const now = sizes(report.binding), before = sizes(report.decided_at);
  if (now) section.append(element("div", { class: "note" }, `at ${now}` + (before === now ? "" : `; planned in an earlier call, with ${before}`)));
  if (s.decision) section.append(element("div", { class: "note" }, `chosen: ${s.decision}`));
  if (report.reasons.length) section.append(element("h2", {}, "On the CPU because"), ...report.reasons.map(reasonText));
  section.append(element("h2", {}, report.measured ? "Most time, as measured" : "Most time, as predicted"), slowestTable());
  if (report.subgraphs.length) section.append(element("h2", {}, "Subgraphs, in order"), subgraphTable());
  if (report.transfers.length) section.append(element("h2", {}, "Transfers"), transferTable());
}
function slowestTable() {
  const seen = new Set();
  const units = [];
  for (const [i, node] of report.nodes.entries()) {
    const ms = node.measured_ms ?? node.predicted_ms, unit = node.kernels.length ? `k${node.kernels[0]}` : node.key;
    if (ms === null || seen.has(unit)) continue;
    seen.add(unit);
    units.push({ i, ms, label: node.fused_into || node.op_type, name: node.name });
  }
  const whole = units.reduce((sum, unit) => sum + unit.ms, 0);
  const table = element("table");
  for (const unit of units.sort((a, b) => b.ms - a.ms).slice(0, 12)) {
    const line = element(
      "tr",
      { "data-slow": unit.i, title: "Show it" },
      element("td", {}, unit.label, element("div", { class: "note" }, unit.name)),
      element("td", { class: "number" }, milliseconds(unit.ms), element("div", { class: "note" }, share(unit.ms / whole))),
    );
    line.addEventListener("click", () => select(unit.i));
    table.append(line);
  }
  return table;
}
function reasonText(group) {
  const made = element("div", { class: "reason" }, group.reason);
  const ops = Object.entries(group.ops).map(([op, count]) => `${count} ${op}`).join(", ");
  const keys = new Set(group.nodes);
  const showThem = () => {
    find("search").value = "";
    highlight(true, report.nodes.map((node) => keys.has(node.key)));
    fit();
  };
  made.append(element("p", {}, ops, " – ", element("button", { class: "link", onclick: showThem }, "show")));
  if (group.price) made.append(element("p", { class: "price" }, group.price));
  return made;
}
function subgraphTable() {
  const table = element("table");
  report.subgraphs.forEach((part, i) => {
    const kernels = part.kernels ? ` in ${plural(part.kernels, "kernel")}` : "";
    const line = element(
      "tr",
      { "data-subgraph": i, title: "Show it" },
      element("td", {}, element("span", { class: `badge ${part.device}` }, part.device.toUpperCase())),
      element("td", {}, `${plural(part.nodes, "node")}${kernels}`),
      element("td", { class: "number" }, milliseconds(part.measured_ms ?? part.predicted_ms)),
    );
    line.addEventListener("click", () => {
      const band = drawing.bands.find((b) => b.subgraph === i);
      if (band) show(band.x + band.width / 2, band.y + Math.min(band.height / 2, 260), 0.7);
    });
    table.append(line);
  });
  return table;
}
function transferTable() {
  const table = element("table");
  const sorted = [...report.transfers].sort((a, b) => b.nbytes - a.nbytes);
  for (const move of sorted.slice(0, 40)) {
    const line = element(
      "tr",
      { "data-value": move.value, title: "Show it" },
      element("td", {}, move.direction === "upload" ? "▲ up" : "▼ down"),
      element("td", {}, move.value),
      element("td", { class: "number" }, bytes(move.nbytes)),
    );
    line.addEventListener("click", () => {
      const i = makerOf.get(move.value) ?? (readersOf.get(move.value) ?? [])[0];
      if (i !== undefined) select(i);
    });
    table.append(line);
  }
  if (sorted.length > 40) table.append(element("tr", {}, element("td", { colspan: 3 }, `and ${sorted.length - 40} smaller ones`)));
  return table;
}

find("title").textContent = report.title;
find("larger").addEventListener("click", () => zoomMiddle(1.35));
find("smaller").addEventListener("click", () => zoomMiddle(1 / 1.35));
find("fit").addEventListener("click", fit);
find("panel").addEventListener("click", () => {
  const closed = find("side").classList.toggle("closed");
  find("panel").setAttribute("aria-expanded", String(!closed));
});
document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    find("search").focus();
  }
  if (event.key === "f") fit();
  if (event.key === "p") find("panel").click();
  if (event.key === "+") zoomMiddle(1.35);
  if (event.key === "-") zoomMiddle(1 / 1.35);
  if (event.key === "Escape") unselect();
});
summarise();
fit();
new ResizeObserver(() => moved || fit()).observe(stage);

// explain.html#find=WORDS searches, #node=NAME shows a node
const hash = new URLSearchParams(location.hash.slice(1));
if (hash.has("find")) {
  find("search").value = hash.get("find");
  search(hash.get("find"));
}
const wanted = report.nodes.findIndex((n) => [n.key, n.name].includes(hash.get("node")));
if (wanted >= 0) select(wanted);
