// The status page at / of the metrics port: polls status.json and draws it.

const kPollMs = 500, kFirstPollMs = 100, kHistoryMs = 120000;
const kWaitWords = {
  arrived: "it has just arrived", max_num_seqs: "as many run as may at once", pages: "the pool is full",
  prompt_room: "prompts that are being read have all the room for them", block_tables: "the block tables are full",
  catch_up: "one that was preempted needs room to catch up", tpot: "one more would make steps too slow for the target",
  prefix: "a prompt that begins alike is being read",
};

const at = id => document.getElementById(id);
const number = value => Math.round(value).toLocaleString("en-US");
const short = value => value >= 10000 ? number(value / 1000) + "k" : value >= 100 || Number.isInteger(value) ? number(value) : value.toFixed(1);
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(part > 0 && part < whole / 100 ? 1 : 0) + " %" : "-";
const seconds = ms => ms < 1000 ? Math.round(ms) + " ms" : ms < 60000 ? (ms / 1000).toFixed(1) + " s" : Math.floor(ms / 60000) + " min " + Math.round(ms % 60000 / 1000) + " s";
const shortName = name => name.length > 18 ? name.slice(0, 8) + "…" + name.slice(-8) : name;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; ++unit) count /= 1024;
  return (count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)) + " " + units[unit];
}

// A policy's colour follows from its index in the server's list of policies: it is the same after
// every reload, and differs clearly from the colours of its neighbours.
let policies = [];
const hueOf = policy => Math.round(210 + 137.508 * policies.indexOf(policy)) % 360;

// ---- The pool now ------------------------------------------------------------------------------

function showHead(status) {
  at("title").textContent = "hydrantd " + status.version;
  const {why, ready} = status.health, model = status.model;
  at("health").textContent = why;
  at("health").className = ready ? "good" : "bad";
  document.title = (model ? model.name : "hydrantd") + (ready ? "" : ": " + why);
  at("model").textContent = !model ? "" : model.name + " · " + model.engine + " · " + model.layers + " layers of " + model.kv_heads +
    " KV heads · pages of " + model.block_size + " entries of one head, " + bytes(model.page_bytes);
}

function showFigures(view, rates) {
  const pool = view.pool, totals = view.totals, step = view.steps.at(-1);
  const figures = [
    ['running', number(view.running)],
    ['reading prompts', number(view.prefilling)],
    ['waiting', number(view.waiting)],
    ['of the pool used', percent(pool.pages - pool.free, pool.pages)],
    ['tokens/s', short(rates.generation_tokens)],
    ['prompt tokens/s', short(rates.prompt_tokens)],
    ['evicted/s, a head', short(rates.evicted_entries)],
    [
      'rows + prompt tokens',
      step && view.running + view.prefilling > 0 ? number(step[3]) + ' + ' + number(step[4]) : '-'
    ],
    ['preemptions', number(totals.preemptions)],
    ['swaps', number(totals.swaps)],
    ['shrinks', number(totals.shrinks)],
  ];
  at("figures").replaceChildren(...figures.map(([name, value]) => {
    const figure = tag("div");
    figure.append(tag("b", value), tag("small", name));
    return figure;
  }));
}

// Pages by owner, in drawing order: [{pages, fill, title}].
function poolParts(view) {
  const style = getComputedStyle(document.documentElement), lightness = parseFloat(style.getPropertyValue("--lightness"));
  const owners = [...view.live].sort((a, b) => a.policy < b.policy ? -1 : a.policy > b.policy ? 1 : a.handle - b.handle);
  const parts = owners.map((one, i) => ({
    pages: one.own_pages,
    // Neighbours of one colour differ in lightness.
    fill: "hsl(" + hueOf(one.policy) + " 60% " + (lightness + (i % 2 === 0 ? 0 : 9)) + "%)",
    title: one.request_id + ": " + one.policy + ", " + number(one.pages) + " pages",
  }));
  parts.push({pages: view.pool.of_others, fill: style.getPropertyValue("--dim"), title: "smaller requests"});
  parts.push({pages: view.pool.shared, fill: style.getPropertyValue("--shared"), title: "shared by several requests"});
  parts.push({pages: view.pool.free, fill: style.getPropertyValue("--free"), title: "free"});
  return parts.filter(part => part.pages > 0);
}

// A grid of cells, each a number of pages, filled column by column.
let cells = [];
function drawPool(view) {
  const canvas = at("pool"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  const size = 9, rows = 14, columns = Math.max(1, Math.floor(width / size));
  const count = Math.min(rows * columns, view.pool.pages), each = view.pool.pages / count;
  canvas.width = width * ratio;
  canvas.height = rows * size * ratio;
  canvas.style.height = rows * size + "px";
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const parts = poolParts(view);
  cells = [];
  let part = 0, end = parts.length > 0 ? parts[0].pages : 0;
  for (let i = 0; i < count; ++i) {
    while (part + 1 < parts.length && (i + 0.5) * each >= end) end += parts[++part].pages;
    cells.push(parts[part]);
    pen.fillStyle = parts[part].fill;
    pen.fillRect(Math.floor(i / rows) * size, (i % rows) * size, size - 1.5, size - 1.5);
  }
  canvas.onmousemove = event => {
    const cell = cells[Math.floor(event.offsetX / size) * rows + Math.floor(event.offsetY / size)];
    canvas.title = cell === undefined ? "" : cell.title;
  };
  at("pool-note").textContent = "A square is " + (each > 1 ? "about " + short(each) + " pages. " : "a page. ") + number(view.pool.pages) + " pages in all" +
    (view.pool.spared > 0 ? "; sharing spares " + number(view.pool.spared) + " more." : ".");
}

function swatch(classes, hue) {
  const mark = tag("i", undefined, {class: classes});
  if (hue !== undefined) mark.style.setProperty("--hue", hue);
  return mark;
}

function showLegend(view) {
  const policies = new Map();
  for (const one of view.live) {
    const sum = policies.get(one.policy) || {requests: 0, pages: 0, full: 0};
    sum.requests += 1;
    sum.pages += one.pages;
    sum.full += one.full_pages;
    policies.set(one.policy, sum);
  }
  const entry = (mark, text) => {
    const span = tag("span");
    span.append(mark, text);
    return span;
  };
  const entries = [...policies].sort().map(([policy, sum]) => entry(
    swatch("hue", hueOf(policy)), policy + ": " + number(sum.requests) + (sum.requests === 1 ? " request, " : " requests, ") + number(sum.pages) + " pages" +
    (sum.full > sum.pages ? " where full would hold " + number(sum.full) : "")));
  if (view.pool.shared > 0) entries.push(entry(swatch("shared"), "shared: " + number(view.pool.shared)));
  entries.push(entry(swatch("free"), "free: " + number(view.pool.free)));
  at("legend").replaceChildren(...entries);
}

// Memory other than the pool: [name, whole, [[part, hue, label]]].
function showBars(view) {
  const host = view.host, prefix = view.prefix_cache;
  const bars = [["Pages in the host's memory", host.pages, [[host.swapped, 28, "swapped out"], [host.contexts, 140, "in " + number(view.contexts) + (view.contexts === 1 ? " context" : " contexts")]]],
                ["Prefix cache", prefix.blocks, [[prefix.filled, 210, "blocks filled"]]]];
  at("bars").replaceChildren(...bars.filter(([, whole]) => whole > 0).map(([name, whole, parts]) => {
    const section = tag("section"), bar = tag("div", undefined, {class: "bar"});
    for (const [part, hue] of parts) {
      const piece = tag("div", undefined, {class: "hue"});
      piece.style.setProperty("--hue", hue);
      piece.style.width = 100 * part / whole + "%";
      bar.append(piece);
    }
    section.append(tag("h2", name), bar,
                   tag("p", parts.map(([part, , what]) => number(part) + " " + what).join(", ") + ", of " + number(whole), {class: "note"}));
    return section;
  }));
}

// ---- Over time ---------------------------------------------------------------------------------

const kPlot = {width: 520, height: 130, left: 52, right: 514, top: 8, bottom: 112};

function newPlot(least, most, log, name) {
  const svg = drawn("svg", {viewBox: "0 0 " + kPlot.width + " " + kPlot.height});
  const y = scale(least, most, kPlot.bottom, kPlot.top, log);
  drawGrid(svg, marks(least, most, log, 3), y, kPlot.left, kPlot.right, name);
  return [svg, y];
}

const path = points => "M" + points.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");

// A legend entry for a line or a kind of bars: hue, saturation and text.
function plotName(color, what) {
  const name = tag("span", undefined, {class: "name"}), mark = tag("i");
  mark.style.background = "hsl(" + color + " var(--lightness))";
  name.append(mark, what);
  return name;
}

// A bar is a step, a line the predicted time. Steps with prefill take many times as long as others,
// so the scale is logarithmic.
function drawSteps(view) {
  const steps = view.steps;
  if (steps.length < 2) {
    at("steps").replaceChildren();
    at("steps-note").textContent = "None yet.";
    return;
  }
  const took = steps.map(step => Math.max(step[1] / 1000, 0.001));
  const [svg, y] = newPlot(Math.min(...took) / 2, Math.max(...took) * 1.3, true, v => v + " ms");
  const x = scale(0, steps.length, kPlot.left, kPlot.right), width = Math.max(1, (kPlot.right - kPlot.left) / steps.length - 0.3);
  steps.forEach((step, i) => {
    const top = y(took[i]);
    svg.append(drawn("rect", {x: x(i), y: top, width, height: kPlot.bottom - top, class: step[4] > 0 ? "step prompt" : "step"}));
  });
  const predicted = steps.map((step, i) => [x(i + 0.5), Math.max(kPlot.top, y(step[2] / 1000))]);
  svg.append(drawn("path", {d: path(predicted), class: "line second"}));
  at("steps").replaceChildren(svg);
  const last = steps.at(-1), note = at("steps-note");
  note.replaceChildren("The last " + steps.length + " steps; the last took " + (last[1] / 1000).toFixed(1) + " ms, " + (last[2] / 1000).toFixed(1) + " were predicted.");
  note.append(...[["210 60%", "decode"], ["280 40%", "with prompts"], ["28 80%", "predicted"]].map(one => plotName(...one)));
}

// Past values of the counters, the oldest first: [{ms, totals}].
let counted = [];
function remember(view) {
  const ms = view.at_us / 1000;
  if (counted.length > 0 && counted.at(-1).totals.steps > view.totals.steps) counted = [];  // another process
  if (counted.length === 0 || ms > counted.at(-1).ms) counted.push({ms, totals: view.totals});
  while (counted.length > 0 && counted[0].ms < ms - kHistoryMs) counted.shift();
}

// Rate per second over about two seconds before counted[i].
function ratesAt(i) {
  let from = i;
  while (from > 0 && counted[i].ms - counted[from].ms < 2000) --from;
  const past = (counted[i].ms - counted[from].ms) / 1000;
  const rate = name => past > 0 ? Math.max(0, counted[i].totals[name] - counted[from].totals[name]) / past : 0;
  return {generation_tokens: rate("generation_tokens"), prompt_tokens: rate("prompt_tokens"), evicted_entries: rate("evicted_entries")};
}

function drawRates() {
  if (counted.length < 3) return;
  const rates = counted.map((_, i) => ratesAt(i));
  const most = Math.max(1, ...rates.map(rate => Math.max(rate.generation_tokens, rate.evicted_entries))) * 1.1;
  const [svg, y] = newPlot(0, most, false, short), now = counted.at(-1).ms, x = scale(now - kHistoryMs, now, kPlot.left, kPlot.right);
  for (const [name, style] of [["evicted_entries", "line second"], ["generation_tokens", "line"]])
    svg.append(drawn("path", {d: path(rates.map((rate, i) => [x(counted[i].ms), y(rate[name])])), class: style}));
  drawTicks(svg, [[now - 110000, "2 min ago"], [now - 60000, "1 min"], [now - 8000, "now"]], x, kPlot.height - 3);
  at("rates").replaceChildren(svg);
  const note = at("rates-note");
  note.replaceChildren("A second, of all requests:");
  note.append(...[['210 60%', 'tokens generated'], ['28 80%', 'entries evicted, of a head']].map(
      one => plotName(...one)));
}

// ---- Requests ----------------------------------------------------------------------------------

function stateOf(one) {
  if (one.state === "prefilling") return "reading " + percent(one.prompt_tokens_read, one.prompt_tokens);
  if (one.state === "swapped") return "swapped out, " + number(one.host_pages) + " pages";
  return one.state;
}

function budgetOf(one) {
  if (one.budget === null && one.most_entries === null) return "all";
  if (one.budget === null) return "≤ " + number(one.most_entries);
  return number(one.budget) + (one.most_entries === null ? " + new" : "");
}

function troubles(one) {
  const parts = [["preempted", one.preemptions], ["swapped", one.swaps], ["cut", one.shrinks]];
  return parts.filter(([, count]) => count > 0).map(([what, count]) => what + " " + count + "×").join(", ");
}

const kNames = [["request", "words id", one => shortName(one.request_id)], ["state", "words", stateOf], ["policy", "words", one => one.policy]];
const kSizes = [["budget", "", budgetOf], ["prompt", "", one => number(one.prompt_tokens)], ["new", "", one => number(one.completion_tokens)]];
const kCache = [
  ['kept a head', '', one => number(one.kept)], ['evicted', '', one => number(one.evicted)],
  ['pages', '', one => number(one.pages)],
  ['of full', '', one => percent(one.pages, one.full_pages)]
];
const kTimes = [["age", "", one => seconds(one.age_ms)], ["", "words", troubles]];
// Shown only if a request has a value.
const kTenant = ["tenant", "words", one => shortName(one.tenant)], kPriority = ["priority", "", one => number(one.priority)];

function requestTable(requests, columns) {
  if (requests.some(one => one.priority !== 0)) columns.splice(1, 0, kPriority);
  if (requests.some(one => one.tenant !== "")) columns.splice(1, 0, kTenant);
  const table = tag("table"), head = tag("tr");
  for (const [name, classes] of columns) head.append(tag("th", name, {class: classes}));
  table.append(head);
  for (const one of requests) {
    const row = tag("tr");
    for (const [name, classes, text] of columns) {
      const cell = tag("td", text(one), {class: classes});
      if (name === "request") cell.title = one.request_id;
      if (name === 'kept a head') cell.title = 'the fullest head: ' + number(one.fullest);
      if (name === "policy") cell.prepend(swatch("hue", hueOf(one.policy)));
      row.append(cell);
    }
    table.append(row);
  }
  return table;
}

function showRequests(view) {
  const show = (id, requests, columns, all, none) => {
    at(id).replaceChildren(requests.length > 0 ? requestTable(requests, columns) : tag("p", none, {class: "note"}));
    if (all > requests.length) at(id).append(tag("p", "and " + number(all - requests.length) + " more", {class: "note"}));
  };
  show("live", view.live, [...kNames, ...kSizes, ...kCache, ...kTimes], view.running + view.prefilling, "None: the pool is idle.");
  show("queue", view.queue, [...kNames, ...kSizes, ...kTimes], view.waiting, "");
  at("queue-note").textContent = view.waiting === 0 ? "Nobody waits." :
    number(view.waiting) + (view.waiting === 1 ? " waits" : " wait") + " with " + number(view.queued_tokens) + " tokens. The first one: " + (kWaitWords[view.wait_reason] || view.wait_reason) + ".";
}

// ---- Polling -----------------------------------------------------------------------------------

function show(status) {
  policies = status.policies;
  showHead(status);
  const view = status.view;
  at("age").textContent = view !== null && view.age_ms > 1500 ? "as it was " + seconds(view.age_ms) + " ago: a step is at work" : "";
  if (view === null) return;
  remember(view);
  showFigures(view, ratesAt(counted.length - 1));
  showLegend(view);
  drawPool(view);
  showBars(view);
  drawSteps(view);
  drawRates();
  showRequests(view);
}

// Null if there is no answer.
async function ask() {
  try {
    const answer = await fetch("status.json", {cache: "no-store", signal: AbortSignal.timeout(5000)});
    return await answer.json();
  } catch (error) {
    at("health").textContent = "no answer: " + error.message;
    at("health").className = "bad";
    return null;
  }
}

async function poll() {
  const status = document.hidden ? null : await ask();
  const is_first = status !== null && status.model !== null && status.view === null;
  setTimeout(poll, is_first ? kFirstPollMs : kPollMs);
  if (document.hidden) return;
  document.body.classList.toggle("stale", status === null);
  if (status !== null) show(status);
}
poll();
