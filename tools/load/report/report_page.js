// Draws the plots and tables of a report: of runs, of sweeps, of a comparison.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

const made = (name, text, className) => tag(name, text, className ? {class: className} : {});

function section(title, note) {
  const whole = made("section");
  whole.append(made("h2", title));
  if (note) whole.append(made("p", note, "note"));
  page.append(whole);
  return whole;
}
// A table; a cell is a text or an element.
function table(head, rows) {
  const whole = made("table"), first = made("tr"), scroll = made("div", undefined, "scroll");
  first.append(...head.map(name => made("th", name)));
  whole.append(first);
  for (const cells of rows) {
    const row = made("tr");
    if (cells.length === 1) row.append(Object.assign(made("th", cells[0], "group"), {colSpan: head.length}));
    else row.append(...cells.map(cell => cell instanceof Element ? cell : made("td", cell)));
    whole.append(row);
  }
  scroll.append(whole);
  return scroll;
}

const HUES = [215, 22, 140, 300, 48, 180, 350, 265];
const hueOf = index => index < HUES.length ? HUES[index] : (index * 137.5) % 360;
const isNumber = value => typeof value === "number" && isFinite(value);
function shown(value) {
  if (!isNumber(value)) return "–";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
}
const percent = share => isNumber(share) ? `${(100 * share).toFixed(1)} %` : "–";

const WIDE = {width: 900, height: 230}, NARROW = {width: 440, height: 230};
const LEFT = 56, RIGHT = 12, ABOVE = 10, BELOW = 36;

// Axes of a plot of these points: {svg, x, y}, with functions from values to coordinates.
function axes(points, {size = WIDE, xLabel, ticks, logX = false, log = false, shade}) {
  const {width, height} = size;
  const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img"});
  const ys = points.map(p => p[1]).filter(y => !log || y > 0);
  let bottom = log ? Math.min(...ys) : Math.min(0, ...ys), top = Math.max(...ys);
  if (log) [bottom, top] = [bottom / 1.15, top * 1.15];
  else top = top > bottom ? top * 1.04 : bottom + 1;
  const xs = ticks ? ticks.map(t => t[0]) : points.map(p => p[0]);
  let first = xLabel === "s" ? 0 : Math.min(...xs), last = Math.max(...xs);
  if (logX && last > first) [first, last] = [first / 1.1, last * 1.1];
  if (first === last) [first, last] = logX ? [first / 2, last * 2] : [first - 0.5, last + 0.5];
  const margin = ticks ? 18 : 0;
  const x = scale(first, last, LEFT + margin, width - RIGHT - margin, logX);
  const y = scale(bottom, top, height - BELOW, ABOVE, log);
  if (shade && shade[1] > shade[0])
    svg.append(drawn("rect", {x: x(shade[0]), width: Math.min(x(shade[1]), width - RIGHT) - x(shade[0]), y: ABOVE, height: height - ABOVE - BELOW, class: "shade"}));
  drawGrid(svg, marks(bottom, top, log), y, LEFT, width - RIGHT, shown);
  drawTicks(svg, ticks ?? marks(first, last, logX, width / 90).map(v => [v, shown(v)]), x, height - 20);
  svg.append(drawn("text", {x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle"}, xLabel));
  return {svg, x, y};
}

const DASHES = {solid: "none", dashed: "6 4", dotted: "2 3"};

function legend(lines) {
  const whole = made("div", undefined, "legend");
  for (const line of lines) {
    const sample = drawn("svg", {viewBox: "0 0 30 8"});
    if (line.bar) sample.append(drawn("rect", {x: 8, y: 0, width: 10, height: 8, class: "bar", style: `--hue: ${line.hue}`}));
    else sample.append(drawn("line", {x1: 0, x2: 30, y1: 4, y2: 4, class: `line${line.neutral ? " neutral" : ""}`,
                                      style: `--hue: ${line.hue ?? 0}`, "stroke-dasharray": DASHES[line.dash ?? "solid"]}));
    const item = made("span");
    item.append(sample, line.name);
    whole.append(item);
  }
  return whole;
}

// A tooltip with the values of all lines under the pointer.
function addTip(figure, {svg, x}, lines, {xLabel, ticks, size = WIDE}) {
  const tip = made("div", undefined, "tip"), places = [...new Set(lines.flatMap(line => line.points.map(p => p[0])))];
  const cursor = drawn("line", {y1: ABOVE, y2: size.height - BELOW, class: "cursor", visibility: "hidden"});
  tip.hidden = true;
  svg.append(cursor);
  figure.append(tip);
  svg.onmouseleave = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  svg.onmousemove = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * size.width / box.width;
    const nearest = places.reduce((a, b) => Math.abs(x(b) - at) < Math.abs(x(a) - at) ? b : a);
    const words = lines.map(line => [line.name, line.points.find(p => p[0] === nearest)]).filter(([, p]) => p && isNumber(p[1]));
    const where = ticks ? ticks.find(t => t[0] === nearest)?.[1] : `${shown(nearest)} ${xLabel}`;
    tip.textContent = [where, ...words.map(([name, p]) => `${name}: ${shown(p[1])}${p[2] ? ` (${p[2]})` : ""}`)].join("\n");
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    const left = x(nearest) * box.width / size.width;
    tip.style.left = left > box.width / 2 ? "" : `${left + 10}px`;
    tip.style.right = left > box.width / 2 ? `${box.width - left + 10}px` : "";
    tip.style.top = "1.5em";
  };
}

// Lines, each {name, hue or neutral, dash, points: [[x, y, words]], dots: (point) => "hollow" or
// ""}; draws nothing if there are no points. A null y breaks a line.
function plot(parent, title, lines, options) {
  lines = lines.filter(line => line.points.some(p => isNumber(p[1])));
  const points = lines.flatMap(line => line.points).filter(p => isNumber(p[1]));
  if (!points.length) return;
  const positive = points.map(p => p[1]).filter(y => y > 0);
  const log = options.log === "auto" ? positive.length > 0 && positive.length === points.length && Math.max(...positive) > 40 * Math.min(...positive)
                                     : options.log && positive.length > 0;
  options = {...options, log};
  const figure = made("figure"), frame = axes(points, options), {svg, x, y} = frame;
  figure.append(made("h3", log ? `${title} (logarithmic)` : title));
  for (const line of lines) {
    const looks = {style: `--hue: ${line.hue ?? 0}`};
    let stretch = [];
    const end = () => {
      if (stretch.length > 1 || (stretch.length && !line.dots))
        svg.append(stretch.length > 1
          ? drawn("polyline", {...looks, class: `line${line.neutral ? " neutral" : ""}`, points: stretch.map(p => p.join()).join(" "),
                               "stroke-dasharray": DASHES[line.dash ?? "solid"]})
          : drawn("circle", {...looks, class: "dot", cx: stretch[0][0], cy: stretch[0][1], r: 1.6}));
      stretch = [];
    };
    for (const p of line.points) isNumber(p[1]) && (!log || p[1] > 0) ? stretch.push([x(p[0]).toFixed(1), y(p[1]).toFixed(1)]) : end();
    end();
    if (line.dots)
      for (const p of line.points) if (isNumber(p[1]) && (!log || p[1] > 0))
        svg.append(drawn("circle", {...looks, class: `dot ${line.dots(p)}`, cx: x(p[0]), cy: y(p[1]), r: 3.2}));
  }
  figure.append(svg);
  if (lines.length > 1 || options.named) figure.append(legend(lines));
  addTip(figure, frame, lines, options);
  parent.append(figure);
}

// Stacked bars, an array of counts each.
function bars(parent, title, parts, step, options) {
  const length = Math.max(...parts.map(part => part.counts.length));
  const sums = Array.from({length}, (_, i) => parts.reduce((sum, part) => sum + (part.counts[i] ?? 0), 0));
  const figure = made("figure"), frame = axes([[0, 0], [length * step, Math.max(...sums)]], options), {svg, x, y} = frame;
  figure.append(made("h3", title));
  const below = new Array(length).fill(0);
  for (const part of parts) {
    part.counts.forEach((count, i) => {
      if (!count) return;
      svg.append(drawn("rect", {x: x(i * step) + 0.5, width: Math.max(1, x((i + 1) * step) - x(i * step) - 1), y: y(below[i] + count),
                                height: y(below[i]) - y(below[i] + count), class: "bar", style: `--hue: ${part.hue}`}));
      below[i] += count;
    });
  }
  const lines = parts.map(part => ({...part, bar: true, points: part.counts.map((count, i) => [(i + 0.5) * step, count])}));
  figure.append(svg, legend(lines));
  addTip(figure, frame, lines, options);
  parent.append(figure);
}

function plots(parent, wide) {
  const whole = made("div", undefined, wide ? "plots wide" : "plots");
  parent.append(whole);
  return whole;
}

const KINDS = [["ttft", "time to first token"], ["tpot", "time per output token"], ["itl", "inter-token latency"], ["e2el", "end to end"], ["queue", "queued"]];
const QUANTILES = [["p50", "median"], ["p90", "p90"], ["p95", "p95"], ["p99", "p99"], ["p99.9", "p99.9"], ["max", "max"]];
// vllm's own files have a zero if nothing was measured.
const timeOf = (figures, kind, quantile) => {
  const value = figures[`${quantile}_${kind}_ms`];
  return isNumber(value) && (value > 0 || figures[`mean_${kind}_ms`] > 0) ? value : undefined;
};

// --- Runs

// The compared series: the arms of a single run, else the runs.
function seriesOf(runs) {
  const arms = runs.length === 1 ? runs[0].arms ?? [] : [];
  const all = arms.length > 1 ? arms : runs;
  return all.map((figures, i) => ({name: figures.name ?? "all", hue: hueOf(i), figures, timeline: figures.timeline}));
}

function drawHead(runs) {
  for (const run of runs) {
    const late = run.send_lateness_ms ?? run["p99_send_lateness_ms"];
    const words = [runs.length > 1 ? run.name : run.model_id, `${run.num_prompts ?? run.completed} requests`,
                   run.request_rate !== undefined ? `rate ${run.request_rate}` : "", run.max_concurrency ? `at most ${run.max_concurrency} at once` : "",
                   run.warm_up_s ? `the first ${run.warm_up_s} s are warm-up and count nowhere but in the plots over time (shaded)` : "",
                   isNumber(late) && late >= 1 ? `sent late by ${shown(late)} ms at p99` : "", run.backend, run.date];
    page.append(made("p", words.filter(word => word).join(" · "), "note"));
    if (run.complete === false)
      page.append(made("p", `${runs.length > 1 ? `${run.name}: p` : "P"}artial: this run was broken off; what is shown is a part of it.`, "warning"));
  }
}

function drawFigures(runs) {
  const arms = runs.length === 1 && runs[0].arms?.length > 1 ? runs[0].arms : [];
  const columns = [...runs.map(run => ({...run, name: arms.length ? "all" : run.name})), ...arms];
  const rows = [];
  const row = (name, value) => {
    const values = columns.map(value);
    if (values.some(v => v !== undefined && v !== null)) rows.push([name, ...values.map(v => typeof v === "string" ? v : shown(v))]);
  };
  row("completed", f => f.completed);
  row("failed", f => f.failed);
  row("faults as ordered", f => f.faults || undefined);
  row("unfinished", f => f.unfinished || undefined);
  row("requests/s", f => f.request_throughput);
  row("good requests/s", f => f.request_goodput ?? f["request_goodput:"]);
  row("output tokens/s", f => f.output_throughput);
  row("tokens a message", f => f.mean_tokens_per_message || undefined);
  const evicted = f => f.kv_tokens_evicted > 0 ? f.kv_tokens_evicted / (f.kv_tokens_kept + f.kv_tokens_evicted) : undefined;
  if (columns.some(evicted))
    row('KV entries evicted, mean over heads', f => percent(evicted(f) ?? 0));
  const held = (f, key) => f.kv_bytes_of_full > 0 ? f[key] / f.completed / 2 ** 20 : undefined;
  row('KV memory at a request\'s end, MiB', f => held(f, 'kv_bytes'));
  row('full would hold, MiB', f => held(f, 'kv_bytes_of_full'));
  if (columns.some(f => f.cached_tokens > 0))
    row('prompt tokens found in caches', f => percent(f.cache_hit_rate));
  row("preemptions", f => f.preemptions || undefined);
  const goal = Object.entries(runs[0].goodput ?? {}).map(([kind, ms]) => `${kind} ${ms} ms`).join(", ");
  const part = section("Figures", goal && `A good request keeps ${goal}.`);
  part.append(table(["", ...columns.map(f => f.name)], rows));
  const times = KINDS.flatMap(([kind, words]) => {
    const those = columns.filter(f => timeOf(f, kind, "mean") !== undefined);
    const cells = f => [timeOf(f, kind, "mean"), ...QUANTILES.map(([, key]) => timeOf(f, kind, key))].map(shown);
    if (columns.length === 1) return those.map(f => [words, ...cells(f)]);
    return those.length ? [[words], ...those.map(f => [f.name, ...cells(f)])] : [];
  });
  part.append(table(["ms", "mean", ...QUANTILES.map(([name]) => name)], times));
}

const column = (timeline, values) => (values ?? []).map((value, i) => [(i + 0.5) * timeline.step_s, value]);

function drawOverTime(runs) {
  const series = seriesOf(runs).filter(s => s.timeline);
  if (!series.length) return;
  const options = {xLabel: "s", shade: runs.length === 1 && runs[0].warm_up_s > 0 ? [0, runs[0].warm_up_s] : undefined, size: WIDE};
  const latency = plots(section("Latency over time", "Time to first token and end to end by when a request was to be sent, inter-token latency by when the message came; of completed requests."), true);
  for (const [kind, words] of KINDS.filter(([kind]) => kind !== "tpot" && kind !== "queue")) {
    const of = (s, quantile, looks) => ({...looks, points: column(s.timeline, s.timeline[`${kind}_ms`]?.[quantile])});
    const lines = series.length === 1
      ? ["p50", "p90", "p99", "max"].map((quantile, i) => of(series[0], quantile, {name: quantile, hue: hueOf(i), dash: quantile === "max" ? "dotted" : "solid"}))
      : series.flatMap(s => [of(s, "p50", {name: `${s.name} p50`, hue: s.hue}), of(s, "p99", {name: `${s.name} p99`, hue: s.hue, dash: "dashed"})]);
    plot(latency, `${words}, ms`, lines, {...options, log: "auto"});
  }
  const rates = plots(section("Rates over time"), true);
  const of = (key, name) => series.map(s => ({name: series.length > 1 ? s.name : name, hue: s.hue, points: column(s.timeline, s.timeline[key])}));
  const whole = runs.length === 1 && runs[0].timeline ? runs[0].timeline : undefined;
  const due = whole ? [{name: "due", neutral: true, points: column(whole, whole.due_per_s)}] : [];
  const good = series.length === 1 && series[0].timeline.good_per_s ? [{name: "good", hue: hueOf(2), points: column(series[0].timeline, series[0].timeline.good_per_s)}] : [];
  plot(rates, "output tokens/s", of("output_tokens_per_s", "tokens"), options);
  plot(rates, "requests/s: completed, and due to be sent", [...due, ...of("completed_per_s", "completed"), ...good], options);
  plot(rates, "requests in flight", of("in_flight", "in flight"), options);
}

function drawErrors(runs) {
  const failing = runs.filter(run => Object.keys(run.error_counts ?? {}).length);
  const rows = data.comparison?.errors.map(error => [error.name, error.counts]) ??
    [...new Set(failing.flatMap(run => Object.keys(run.error_counts)))].map(name => [name, runs.map(run => run.error_counts?.[name] ?? 0)]);
  if (!rows.length) return;
  const names = rows.map(([name]) => name);
  const part = section("Errors", "Requests that failed without order, by status and the server's reason.");
  part.append(table(["", ...runs.map(run => runs.length > 1 ? run.name : "requests")], rows.map(([name, counts]) => [name, ...counts.map(shown)])));
  const grid = plots(part, true);
  for (const run of failing) {
    const parts = (run.timeline?.errors ?? []).map(error => ({...error, hue: hueOf(names.indexOf(error.name) + 1)}));
    if (parts.length) bars(grid, runs.length > 1 ? run.name : "failed requests by when they ended", parts, run.timeline.step_s, {xLabel: "s", size: WIDE});
  }
}

function drawPercentiles(runs) {
  const series = seriesOf(runs), ticks = QUANTILES.map(([name], i) => [i, name]);
  const grid = plots(section("Percentiles"));
  for (const [kind, words] of KINDS)
    plot(grid, `${words}, ms`, series.map(s => ({name: s.name, hue: s.hue, dots: () => "", points: QUANTILES.map(([, key], i) => [i, timeOf(s.figures, kind, key)])})),
         {xLabel: "percentile", ticks, log: "auto", size: NARROW});
}

// [{name, samples}] of scraped metrics, in either file format.
function serversOf(run) {
  const scraped = run.server ?? [];
  if (!Array.isArray(scraped)) return Object.entries(scraped).map(([name, samples]) => ({name, samples}));
  if (!scraped.length || scraped[0].samples) return scraped;
  const names = [...new Set(scraped.map(sample => sample.name ?? ""))];
  return names.map(name => ({name, samples: scraped.filter(sample => (sample.name ?? "") === name)}));
}

// `runs`: each has a name, and the metrics scraped during it.
function drawServers(runs, note = "Scraped while the load ran.") {
  const servers = runs.flatMap(run => serversOf(run).map(server => ({...server, name: [runs.length > 1 ? run.name : "", server.name].filter(n => n).join(" ")})));
  if (!servers.some(server => server.samples.length)) return;
  const grid = plots(section("The servers' own metrics", note), true);
  const lines = (key, words, dash) => servers.map((server, i) => ({name: [server.name, words].filter(n => n).join(" "), hue: hueOf(i), dash,
                                                                   points: server.samples.map(sample => [sample.at_s, sample[key]])}));
  const options = {xLabel: "s", size: WIDE, named: true};
  plot(grid, "sequences running (the batch) and waiting", [...lines("running", "running"), ...lines("waiting", "waiting", "dashed")], options);
  const total = servers.map((server, i) => ({name: [server.name, "in all"].filter(n => n).join(" "), neutral: true, points: server.samples.map(sample => [sample.at_s, sample.pages_total])}));
  plot(grid, "free pages", [...lines("pages_free", "free"), ...total], options);
  // Metrics of servers without pages.
  const used = servers.map(server => ({...server, samples: server.samples.map(sample => ({...sample, used: 100 * (sample.cache_usage ?? NaN)}))}));
  if (!servers.some(server => server.samples.some(sample => isNumber(sample.pages_free))))
    plot(grid, "cache in use, %", used.map((server, i) => ({name: server.name, hue: hueOf(i), points: server.samples.map(sample => [sample.at_s, sample.used])})), options);
}

function drawQuality(runs) {
  for (const run of runs.filter(run => run.quality?.length)) {
    const arms = Object.fromEntries((run.arms ?? []).map(arm => [arm.name, arm]));
    const part = section(runs.length > 1 ? `Answers beside those of full: ${run.name}` : "Answers beside those of full",
                         `${run.quality[0].prompts} of the prompts, answered greedily under each policy and compared with full token by token. ` +
                         "\u201cfull, again\u201d says how much differs by itself, by what else is in a batch. Rates and times are those of the load.");
    part.append(table(["policy", "output tokens/s", "median TPOT, ms", "p99 TTFT, ms", "identical answers", "before the first difference", "matched tokens"],
      run.quality.map(q => [q.name, ...["output_throughput", "median_tpot_ms", "p99_ttft_ms"].map(key => shown((arms[q.name] ?? arms[q.name.split(",")[0]])?.[key])),
                            percent(q.identical), percent(q.before_difference), percent(q.matched)])));
  }
}

function drawOptions(runs) {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.options ?? {})))];
  if (!names.length) return;
  section("Options").append(table(["", ...runs.map(run => runs.length > 1 ? run.name : "")], names.map(name => [name, ...runs.map(run => made("td", run.options?.[name] ?? "", "words"))])));
}

// Warnings that figures side by side are not comparable.
function drawWarnings(parts) {
  for (const words of parts.map(part => part?.warning).filter(words => words))
    page.append(made('p', words, 'warning'));
}

// --- Sweeps

function drawSweepHeads(sweeps) {
  for (const sweep of sweeps) {
    const goal = Object.entries(sweep.goodput ?? {}).map(([kind, ms]) => `${kind} ${ms} ms`).join(", ");
    page.append(made("p", [sweeps.length > 1 ? sweep.name : sweep.model_id, `${percent(sweep.share)} of the requests are to keep ${goal}`,
                           `${sweep.seconds} s and ${sweep.min_requests} requests a probe at least, after ${sweep.warm_up_s} s of warm-up`, `seed ${sweep.seed}`, sweep.backend, sweep.date]
                          .filter(word => word).join(" · "), "note"));
    if (sweep.complete === false)
      page.append(made("p", `${sweeps.length > 1 ? `${sweep.name}: p` : "P"}artial: this sweep was broken off; what is shown is a part of it.`, "warning"));
  }
}

function drawSweeps(sweeps) {
  const arms = sweeps.flatMap(sweep => sweep.arms.map(arm => ({...arm, name: sweeps.length > 1 ? `${sweep.name}: ${arm.name}` : arm.name})));
  arms.forEach((arm, i) => { arm.hue = hueOf(i); arm.points = [...arm.points].sort((a, b) => a.rate - b.rate); });
  const base = arms[0]?.highest_rate;
  section(
      'The highest rate that keeps the objectives',
      'Met at the first, not met at the second; the truth lies between.')
      .append(table(
          [
            '', 'met at, requests/s', 'not met at', `times ${arms[0]?.name ?? ''}`,
            'good requests/s', 'output tokens/s', 'found in caches', 'batch'
          ],
          arms.map(arm => {
            const best = arm.points.find(p => p.rate === arm.highest_rate) ?? {};
            const unfinished = arm.finished ? '' : ' (unfinished)';
            return [
              arm.name + unfinished, isNumber(arm.highest_rate) ? shown(arm.highest_rate) : 'none',
              shown(arm.lowest_failed), shown(arm.highest_rate / base), shown(best.request_goodput),
              shown(best.output_throughput), percent(best.cache_hit_rate), shown(batchOf(best))
            ];
          })));
  const rates = arms.flatMap(arm => arm.points.map(p => p.rate));
  const options = {xLabel: "requests/s offered", logX: rates.length > 1 && Math.max(...rates) > 20 * Math.min(...rates), size: WIDE, named: true};
  const lines = value => arms.map(arm => ({name: arm.name, hue: arm.hue, dots: p => p[3] ? "" : "hollow",
                                           points: arm.points.map(p => [p.rate, value(p), p.met ? "met" : "not met", p.met])}));
  const top = Math.max(...arms.flatMap(arm => arm.points.map(p => p.request_goodput ?? 0)));
  const ideal = {name: "all good", neutral: true, dash: "dotted", points: rates.sort((a, b) => a - b).filter(rate => rate <= 1.2 * top).map(rate => [rate, rate])};
  const goodput = plots(section("Goodput over rate", "Filled where enough requests kept the objectives, hollow where not."), true);
  plot(goodput, "good requests/s", [ideal, ...lines(p => p.request_goodput)], options);
  plot(goodput, "share of requests that kept the objectives, %", lines(p => 100 * p.share), options);
  const more = plots(section("What else changes with the rate"));
  const small = {...options, size: NARROW, named: false};
  plot(more, "output tokens/s", lines(p => p.output_throughput), small);
  plot(more, "batch (running on the servers)", lines(batchOf), small);
  plot(more, "requests in flight", lines(p => p.in_flight), small);
  for (const [kind, words] of KINDS)
    plot(more, `${words}, p99, ms`, lines(p => timeOf(p, kind, "p99")), {...small, log: "auto"});
  drawServers(arms.map(arm => ({name: arm.name, server: arm.points.find(p => p.rate === arm.highest_rate)?.server})),
              "Scraped while the probe ran that had the highest rate of those that kept the objectives.");
  for (const sweep of sweeps)
    section(sweeps.length > 1 ? `Probes: ${sweep.name}` : "Probes").append(table(["", "rate", "requests", "good", "kept", "good/s", "tokens/s", "in flight", "failed", "p99 TTFT", "p99 TPOT"],
      sweep.arms.flatMap(arm => [[arm.name], ...arm.points.map(p => ["", shown(p.rate), shown(p.requests), shown(p.good), made("td", percent(p.share), p.met ? "better" : "worse"),
        shown(p.request_goodput), shown(p.output_throughput), shown(p.in_flight), shown(p.failed), shown(timeOf(p, "ttft", "p99")), shown(timeOf(p, "tpot", "p99"))])])));
}

// The mean number of running sequences on all servers.
function batchOf(point) {
  if (isNumber(point.batch)) return point.batch;
  const servers = serversOf(point).filter(server => server.samples.length);
  if (!servers.length) return undefined;
  return servers.reduce((sum, {samples}) => sum + samples.reduce((s, sample) => s + (sample.running ?? 0), 0) / samples.length, 0);
}

// --- Comparisons

function drawComparison(comparison) {
  const {names, settings, regressions} = comparison;
  if (regressions?.length) {
    page.append(made("p", "Worse than allowed:", "warning"));
    for (const words of regressions) page.append(made("p", words, "warning"));
  }
  const rows = [];
  for (const part of comparison.sections) {
    if (comparison.sections.length > 1) rows.push([part.title]);
    for (const row of part.rows)
      rows.push([row.measure, ...row.values.map((value, i) => {
        const cell = made("td", shown(value));
        if (i > 0) {
          cell.append(made("small", isNumber(row.ratios[i]) ? ` × ${row.ratios[i].toFixed(3)}` : ""));
          if (row.verdicts[i]) cell.className = row.verdicts[i];
        }
        return cell;
      })]);
  }
  section("Compared", `× is the ratio to ${names[0]}; green is better, red is worse.`).append(table(["", ...names], rows));
  if (settings.length)
    section("Settings that differ").append(table(["", ...names], settings.map(s => [s.name, ...s.values.map(v => made("td", v ?? "–", "words"))])));
}

document.title = data.title ?? "hydrant-load";
document.getElementById("title").textContent = document.title;
const runs = data.runs ?? [];
if (runs.length) drawHead(runs);
if (data.sweeps) drawSweepHeads(data.sweeps);
drawWarnings([...runs, ...data.sweeps ?? [], data.comparison]);
if (data.comparison) drawComparison(data.comparison);
if (data.sweeps?.length) drawSweeps(data.sweeps);
if (runs.length) {
  if (!data.comparison) drawFigures(runs);
  for (const draw of [drawOverTime, drawErrors, drawPercentiles, drawServers, drawQuality]) draw(runs);
  if (!data.comparison) drawOptions(runs);
}
