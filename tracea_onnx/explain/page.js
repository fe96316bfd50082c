"use strict";
const $ = (s) => document.querySelector(s);
const data = JSON.parse($("#data").textContent);
const [WIDTH, HEIGHT] = data.box;
const canvas = $("#graph"), map = $("#map"), tip = $("#tip"), detail = $("#detail");
const pen = canvas.getContext("2d");
const still = matchMedia("(prefers-reduced-motion: reduce)");

// --- the graphs, cut into bands of rows: a frame draws those in sight ---------------------------
const BAND = 1152;
for (const graph of data.graphs) {
  graph.bands = Array.from({length: Math.ceil(graph.size[1] / BAND) + 1},
    () => ({boxes: [], path: new Path2D()}));
  const band = (y) => graph.bands[Math.max(0, Math.floor(y / BAND))];
  for (const [x, y, a, b, c, d, u, v] of graph.curves) {
    const path = band(y).path;
    path.moveTo(x, y);
    path.bezierCurveTo(a, b, c, d, u, v);
  }
  for (const box of graph.boxes) {
    Object.assign(box, {graph, above: [], below: [], ways: []});
    box.sub = short(box.kind === "fused" && box.nodes
      ? `${box.name.replace(/\/[^/]*$/, "")} +${box.nodes.length - 1}` : box.name || "", 25);
    const op = box.title.replace(/^.*\./, ""); // without its domain
    box.label = op.length > 20 ? `${op.slice(0, 19)}…` : op;
    box.text = [box.title, box.name, ...(box.values || []), ...(box.says || []),
      ...(box.nodes || []), box.leaves || "", box.fix || ""].join("\n").toLowerCase();
    band(box.y).boxes.push(box);
  }
  for (const [a, b, ...way] of graph.edges) {
    const from = graph.boxes[a], to = graph.boxes[b];
    from.below.push(to);
    to.above.push(from);
    from.ways.push(...way);
    to.ways.push(...way);
  }
}
function short(text, most) { return text.length <= most ? text : "…" + text.slice(1 - most); }

// --- state --------------------------------------------------------------------------------------
let graph = data.graphs[0];
let view = {x: 0, y: 0, k: 1}; // of the canvas: the graph's point at its corner, and the scale
let wide = 1, high = 1; // the canvas in CSS pixels
let chosen = null, hovered = null, hits = null; // hits: a set of boxes; the others are dimmed
let flight = 0, waiting = false, overview = null, ink = {};

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue("--" + name).trim();
  for (const n of ["back", "side", "text", "soft", "line", "box", "edge", "warn", "gone", "focus",
    "label"]) ink[n] = value(n);
  ink.fills = data.hues.map((h) => `hsl(${h} ${value("fill-s")} ${value("fill-l")})`);
  ink.rims = data.hues.map((h) => `hsl(${h} ${value("fill-s")} ${value("rim-l")})`);
  overview = null;
  draw();
}

// --- drawing ------------------------------------------------------------------------------------
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; if (graph) paint(); });
}

function looks(box) { // fill, rim, its width, its dashes
  const ruled = box.rule !== undefined;
  const fill = ruled ? ink.fills[box.rule] : box.kind === "edge" ? ink.back : ink.box;
  if (box.leaves) return [fill, ink.gone, 1.8, [5, 3]];
  if (box.kind === "unfused") return [fill, ink.warn, 2.6, []];
  if (box.kind === "alone") return [fill, ink.warn, 1.2, []];
  if (box.kind === "edge") return [fill, ink.edge, 1, [4, 3]];
  return [fill, ruled ? ink.rims[box.rule] : ink.line, 1, []];
}

function paint() {
  const ratio = devicePixelRatio || 1, k = view.k;
  const bottom = view.y + high / k, right = view.x + wide / k;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = ink.back;
  pen.fillRect(0, 0, wide, high);
  pen.setTransform(ratio * k, 0, 0, ratio * k, -view.x * k * ratio, -view.y * k * ratio);
  const first = Math.max(0, Math.floor(view.y / BAND) - 1);
  const bands = graph.bands.slice(first, Math.max(first, Math.floor(bottom / BAND) + 1));
  pen.globalAlpha = hits ? .3 : 1;
  pen.strokeStyle = ink.line;
  pen.lineWidth = Math.max(1, .8 / k);
  if (k > .012) for (const band of bands) pen.stroke(band.path);
  pen.globalAlpha = 1;
  if (chosen && chosen.graph === graph) {
    pen.strokeStyle = ink.focus;
    pen.lineWidth = Math.max(2, 1.6 / k);
    pen.beginPath();
    for (const c of chosen.ways) {
      const [x, y, a, b, c1, d, u, v] = graph.curves[c];
      pen.moveTo(x, y);
      pen.bezierCurveTo(a, b, c1, d, u, v);
    }
    pen.stroke();
  }
  const seen = bands.flatMap((band) => band.boxes.filter((box) =>
    box.y < bottom && box.y + HEIGHT > view.y &&
    box.x - WIDTH / 2 < right && box.x + WIDTH / 2 > view.x));
  if (k < .25) return far(seen);
  pen.textAlign = "center";
  for (const box of seen) near(box, k);
}

function far(boxes) { // boxes without texts: one path of each look
  const groups = new Map(), broad = Math.max(WIDTH, 2 / view.k);
  for (const box of boxes) {
    const [fill, rim] = looks(box), faint = hits && !hits.has(box);
    const colour = box === chosen ? ink.focus
      : box.kind === "unfused" || box.kind === "alone" || box.leaves ? rim
        : box.rule === undefined ? ink.line : box.rule >= 0 ? rim : fill;
    const key = faint + colour;
    if (!groups.has(key)) groups.set(key, {faint, colour, boxes: []});
    groups.get(key).boxes.push(box);
  }
  for (const {faint, colour, boxes: some} of groups.values()) {
    pen.globalAlpha = faint ? .2 : 1;
    pen.fillStyle = colour;
    pen.beginPath();
    for (const box of some) pen.rect(box.x - broad / 2, box.y, broad, HEIGHT);
    pen.fill();
  }
  pen.globalAlpha = 1;
}

function near(box, k) {
  const [fill, rim, width, dashes] = looks(box), x = box.x - WIDTH / 2;
  pen.globalAlpha = hits && !hits.has(box) ? .3 : 1;
  pen.fillStyle = fill;
  pen.strokeStyle = box === chosen ? ink.focus : box === hovered ? ink.text : rim;
  pen.lineWidth = box === chosen ? 3.5 : box === hovered ? Math.max(2, width) : width;
  pen.setLineDash(box === chosen ? [] : dashes);
  pen.beginPath();
  pen.roundRect(x, box.y, WIDTH, HEIGHT, 6);
  pen.fill();
  pen.stroke();
  pen.setLineDash([]);
  pen.fillStyle = box.rule === undefined ? ink.text : ink.label;
  pen.font = `${box.kind === "fused" ? 600 : 500} ${k < .6 ? 15 : 12}px system-ui, sans-serif`;
  pen.fillText(box.label, box.x, box.y + (k < .6 ? 24 : 16), WIDTH - 8);
  if (k >= .6) {
    pen.fillStyle = box.rule === undefined ? ink.soft : ink.label;
    pen.font = "9.5px system-ui, sans-serif";
    pen.fillText(box.sub, box.x, box.y + 30, WIDTH - 8);
  }
  pen.globalAlpha = 1;
}

function paintMap() {
  const [width, height] = graph.size;
  const scale = Math.min(150 / width, (high - 110) / height);
  map.style.display = fitted() < .8 && high > 250 && wide > 500 ? "" : "none";
  const ratio = devicePixelRatio || 1, w = Math.max(10, width * scale), h = height * scale;
  overview = {scale, left: (w - width * scale) / 2, image: document.createElement("canvas")};
  for (const c of [map, overview.image]) {
    c.width = w * ratio;
    c.height = h * ratio;
  }
  map.style.width = `${w}px`;
  map.style.height = `${h}px`;
  const brush = overview.image.getContext("2d");
  brush.setTransform(ratio * scale, 0, 0, ratio * scale, overview.left * ratio, 0);
  brush.strokeStyle = ink.line;
  brush.lineWidth = .5 / scale;
  for (const band of graph.bands) brush.stroke(band.path);
  const most = Math.max(HEIGHT, 1.2 / scale), broad = Math.max(WIDTH, 2 / scale);
  for (const box of graph.boxes) {
    brush.fillStyle = box.leaves ? ink.gone
      : box.kind === "unfused" || box.kind === "alone" ? ink.warn
        : box.rule === undefined ? ink.line : ink.rims[box.rule];
    brush.fillRect(box.x - broad / 2, box.y, broad, most);
  }
}

function showMap() {
  if (!overview) paintMap();
  if (map.style.display) return;
  const brush = map.getContext("2d"), ratio = devicePixelRatio || 1, s = overview.scale * ratio;
  brush.clearRect(0, 0, map.width, map.height);
  brush.drawImage(overview.image, 0, 0);
  const box = [view.x * s + overview.left * ratio, view.y * s, wide / view.k * s,
    Math.max(3, high / view.k * s)];
  brush.fillStyle = ink.focus + "26";
  brush.strokeStyle = ink.focus;
  brush.lineWidth = 1.5 * ratio;
  brush.fillRect(...box);
  brush.strokeRect(...box);
}

// --- the view -----------------------------------------------------------------------------------
const fitted = () => Math.min(wide / graph.size[0], high / graph.size[1]);
const least = () => Math.min(.05, fitted());

function look(next) {
  cancelAnimationFrame(flight);
  set(next);
}
function set(next) {
  view = next;
  draw();
  showMap();
}
function fly(next) { // as the eye can follow it
  cancelAnimationFrame(flight);
  const from = view;
  let began = 0;
  if (still.matches) return set(next);
  const step = (now) => {
    began ||= now;
    const t = Math.min(1, (now - began) / 180), e = 1 - (1 - t) ** 3;
    set({x: from.x + (next.x - from.x) * e, y: from.y + (next.y - from.y) * e,
      k: from.k + (next.k - from.k) * e});
    if (t < 1) flight = requestAnimationFrame(step);
  };
  flight = requestAnimationFrame(step);
}
function zoom(factor, x = wide / 2, y = high / 2) {
  const k = Math.min(3, Math.max(least(), view.k * factor));
  look({k, x: view.x + x / view.k - x / k, y: view.y + y / view.k - y / k});
}
function fit() { // all of it, or as much of a deep graph as can be told apart
  const k = Math.min(1, Math.max(.08, fitted() * .96)), [width, height] = graph.size;
  const middle = view.y + high / view.k / 2, room = Math.max(0, height - high / k);
  const y = room ? Math.min(room, Math.max(0, middle - high / k / 2)) : (height - high / k) / 2;
  look({k, x: (width - wide / k) / 2, y});
}
function show(index) {
  graph = data.graphs[index];
  if (!graph) return;
  overview = null;
  canvas.setAttribute("aria-label",
    `${graph.title}: ${graph.boxes.length} boxes, ${graph.edges.length} edges`);
  if ($("#body")) $("#body").value = index;
  if (fitted() > .45) return fit();
  const k = Math.min(1, Math.max(.7, wide / graph.size[0])), first = graph.boxes[0];
  look({k, x: first.x - wide / k / 2, y: first.y - 40 / k});
}
function resize() {
  const ratio = devicePixelRatio || 1;
  [wide, high] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = wide * ratio;
  canvas.height = high * ratio;
  overview = null;
  if (graph) set(view);
}

// --- choosing a box -----------------------------------------------------------------------------
function choose(box, move = true) {
  chosen = box;
  describe();
  if (box && box.graph !== graph) show(data.graphs.indexOf(box.graph));
  if (!box || !move) return draw();
  const k = Math.max(view.k, .8);
  fly({k, x: box.x - wide / k / 2, y: box.y + HEIGHT / 2 - high / k / 2});
}

function add(parent, tag, text, name = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  parent.append(made);
  return made;
}

function describe() {
  detail.hidden = !chosen;
  if (!chosen) return;
  detail.replaceChildren();
  add(detail, "h2", chosen.title);
  add(detail, "p", chosen.name, "name");
  for (const line of chosen.says || []) add(detail, "p", line);
  if (chosen.fix) add(add(detail, "p"), "em", `Fix: ${chosen.fix}`);
  if (chosen.leaves) add(detail, "p", `Leaves the provider: ${chosen.leaves}`, "gone");
  for (const [title, lines] of [["Makes", chosen.values], ["Fused from", chosen.nodes]]) {
    if (!lines || !lines.length) continue;
    add(detail, "h3", title);
    for (const line of lines) add(detail, "code", line);
  }
  for (const [title, boxes] of [["Reads", chosen.above], ["Read by", chosen.below]]) {
    if (!boxes.length) continue;
    add(detail, "h3", title);
    const list = add(detail, "ul");
    for (const box of boxes.slice(0, 24)) {
      const button = add(add(list, "li"), "button", `${box.title} ${box.sub}`);
      button.onclick = () => { choose(box); detail.focus(); };
    }
    if (boxes.length > 24) add(list, "li", `and ${boxes.length - 24} more`);
  }
  const close = add(detail, "button", "×", "close");
  close.setAttribute("aria-label", "Close");
  close.onclick = () => { choose(null); canvas.focus(); };
}

function nearest(boxes, measure) {
  let best = null, least = Infinity;
  for (const box of boxes) {
    const m = measure(box);
    if (m !== null && m < least) [best, least] = [box, m];
  }
  return best;
}

function beside(key) { // from the chosen box to the one beside it
  const boxes = graph.boxes;
  const middle = (b) => Math.hypot(b.x - view.x - wide / view.k / 2,
    b.y - view.y - high / view.k / 2);
  if (key === "Home") return nearest(boxes, (b) => b.y * 1e6 + b.x);
  if (key === "End") return nearest(boxes, (b) => -b.y * 1e6 + b.x);
  if (!chosen || chosen.graph !== graph) return nearest(boxes, middle);
  const at = chosen, side = (b) => Math.abs(b.x - at.x) + Math.abs(b.y - at.y) / 10;
  if (key === "ArrowDown") return nearest(at.below, side);
  if (key === "ArrowUp") return nearest(at.above, side);
  const way = key === "ArrowLeft" ? -1 : 1;
  return nearest(boxes, (b) => b.y === at.y && (b.x - at.x) * way > 0 ? side(b) : null);
}

// --- search and legend --------------------------------------------------------------------------
let found = [], turn = -1;
function mark(test) {
  found = test ? data.graphs.flatMap((g) => g.boxes.filter(test)) : [];
  hits = test ? new Set(found) : null;
  turn = -1;
  draw();
}
function press(button) {
  for (const b of document.querySelectorAll("[aria-pressed=true]"))
    b.setAttribute("aria-pressed", "false");
  if (button) button.setAttribute("aria-pressed", "true");
}
function search() {
  const wanted = $("#find").value.trim().toLowerCase();
  press(null);
  mark(wanted && ((box) => box.text.includes(wanted)));
  $("#hits").textContent = !wanted ? "" : !found.length ? "nothing found"
    : `${found.length} found; Enter goes to the next`;
}
function next(by) {
  if (!found.length) return;
  turn = turn < 0 && by < 0 ? found.length - 1 : (turn + by + found.length) % found.length;
  $("#hits").textContent = `${turn + 1} of ${found.length}`;
  choose(found[turn]);
}
$("#find").addEventListener("input", search);
$("#side").addEventListener("click", (e) => {
  const button = e.target.closest("button");
  if (!button) return;
  const {go, rule, kind} = button.dataset;
  if (go !== undefined) {
    for (const g of data.graphs) {
      const box = g.boxes.find((b) => b.name === go && b.kind !== "edge");
      if (!box) continue;
      $("#side").classList.remove("open");
      return choose(box);
    }
    return;
  }
  const on = button.getAttribute("aria-pressed") !== "true";
  $("#find").value = $("#hits").textContent = "";
  press(on ? button : null);
  mark(on && ((b) => rule !== undefined ? b.rule === +rule
    : kind === "leaving" ? b.leaves : b.kind === kind));
  if (on && found.length && !found.some((b) => b.graph === graph))
    show(data.graphs.indexOf(found[0].graph));
});

// --- pointers -----------------------------------------------------------------------------------
const fingers = new Map();
let dragged = false;
function boxAt(e) {
  const r = canvas.getBoundingClientRect();
  const x = view.x + (e.clientX - r.left) / view.k, y = view.y + (e.clientY - r.top) / view.k;
  const bands = graph.bands.slice(Math.max(0, Math.floor((y - HEIGHT) / BAND)),
    Math.floor(y / BAND) + 1);
  for (const band of bands)
    for (const b of band.boxes)
      if (Math.abs(b.x - x) <= WIDTH / 2 && y >= b.y && y <= b.y + HEIGHT) return b;
  return null;
}
function showTip(e) {
  tip.style.display = hovered ? "block" : "none";
  if (!hovered) return;
  tip.textContent = [`${hovered.title}  ${hovered.name || ""}`, ...(hovered.values || []),
    ...(hovered.says || []).slice(0, 1)].join("\n");
  const r = tip.getBoundingClientRect(), below = e.clientY + r.height + 24 < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(e.clientX + 14, innerWidth - r.width - 6))}px`;
  tip.style.top = `${below ? e.clientY + 16 : Math.max(4, e.clientY - r.height - 10)}px`;
}
function hover(box, e) {
  if (box !== hovered) {
    hovered = box;
    canvas.classList.toggle("over", !!box);
    draw();
  }
  showTip(e);
}
canvas.addEventListener("pointerdown", (e) => {
  fingers.set(e.pointerId, e);
  canvas.setPointerCapture(e.pointerId);
  dragged = fingers.size > 1;
});
canvas.addEventListener("pointermove", (e) => {
  const before = fingers.get(e.pointerId);
  if (!before) return hover(boxAt(e), e);
  const dx = e.clientX - before.clientX, dy = e.clientY - before.clientY;
  if (!dragged && Math.hypot(dx, dy) < 4) return;
  if (!dragged) hover(null, e);
  dragged = true;
  canvas.classList.add("drag");
  const other = [...fingers.values()].find((f) => f.pointerId !== e.pointerId);
  fingers.set(e.pointerId, e);
  if (!other) return look({...view, x: view.x - dx / view.k, y: view.y - dy / view.k});
  const apart = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
  const r = canvas.getBoundingClientRect();
  zoom(apart(e, other) / apart(before, other), (e.clientX + other.clientX) / 2 - r.left,
    (e.clientY + other.clientY) / 2 - r.top);
});
function lift(e) {
  if (e.type === "pointerup" && !dragged && fingers.has(e.pointerId)) choose(boxAt(e), false);
  fingers.delete(e.pointerId);
  if (!fingers.size) canvas.classList.remove("drag");
}
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);
canvas.addEventListener("pointerleave", (e) => hover(null, e));
canvas.addEventListener("wheel", (e) => {
  e.preventDefault();
  const unit = e.deltaMode ? 20 : 1, r = canvas.getBoundingClientRect();
  if (e.ctrlKey || e.metaKey)
    return zoom(Math.exp(-e.deltaY * unit * (Math.abs(e.deltaY) < 40 ? .01 : .0022)),
      e.clientX - r.left, e.clientY - r.top);
  const [dx, dy] = e.shiftKey && !e.deltaX ? [e.deltaY, 0] : [e.deltaX, e.deltaY];
  look({...view, x: view.x + dx * unit / view.k, y: view.y + dy * unit / view.k});
  hover(boxAt(e), e);
}, {passive: false});
map.addEventListener("pointerdown", (e) => {
  const r = map.getBoundingClientRect();
  const to = () => look({...view,
    x: (e.clientX - r.left - overview.left) / overview.scale - wide / view.k / 2,
    y: (e.clientY - r.top) / overview.scale - high / view.k / 2});
  to();
  map.setPointerCapture(e.pointerId);
  map.onpointermove = (m) => { e = m; to(); };
  map.onpointerup = map.onpointercancel = () => { map.onpointermove = null; };
});

// --- keys ---------------------------------------------------------------------------------------
function escape() {
  const open = $("#side").classList.contains("open");
  if (open) return toggleList();
  if (chosen) {
    if (detail.contains(document.activeElement)) canvas.focus();
    return choose(null);
  }
  $("#find").value = "";
  search();
}
addEventListener("keydown", (e) => {
  if ($("#about").open || e.ctrlKey || e.metaKey || e.altKey || !graph) return;
  const typing = e.target === $("#find");
  if (e.key === "Escape") {
    if (typing && e.target.value) { e.target.value = ""; search(); } else escape();
    if (typing) canvas.focus();
  } else if (typing) {
    if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
    else if (e.key === "ArrowDown") canvas.focus();
    else return;
  } else if (e.target.matches("select")) {
    return;
  } else if (e.key === "/") {
    if (getComputedStyle($("#side")).display === "none") toggleList();
    $("#find").focus();
  } else if (e.key === "?") {
    $("#about").showModal();
  } else if (e.key === "+" || e.key === "=") {
    zoom(1.25);
  } else if (e.key === "-") {
    zoom(.8);
  } else if (e.key === "0") {
    fit();
  } else if (e.target === canvas && /^(Arrow\w+|Home|End)$/.test(e.key)) {
    const box = beside(e.key);
    if (box) choose(box);
  } else if (e.target === canvas && e.key === "Enter") {
    if (chosen) detail.focus(); else choose(beside(""));
  } else {
    return;
  }
  e.preventDefault();
});
function toggleList() {
  const open = $("#side").classList.toggle("open");
  $("#list").setAttribute("aria-expanded", open);
}
$("#list").onclick = toggleList;
$("#in").onclick = () => zoom(1.25);
$("#out").onclick = () => zoom(.8);
$("#fit").onclick = fit;
$("#help").onclick = () => $("#about").showModal();
if ($("#body")) $("#body").onchange = (e) => show(+e.target.value);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours();
  if (graph) showMap();
});
new ResizeObserver(resize).observe(canvas);
[wide, high] = [canvas.clientWidth, canvas.clientHeight];
colours();
resize();
show(0);
