// Draws the anatomy of texts (tools/eval/pictures.h), below the plots of the tasks
// (tools/eval/report_page.js).

const tint = (i, count) => `hsl(${(360 * i) / count + 10} ${62 + 12 * (i % 2)}% ${[40, 52, 33][i % 3]}%)`;
// The colour of the plots above, if they include the policy.
const hue = (policy, i, count) => arms.includes(policy) ? looks(policy).colour : tint(i, count);
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

function table(head, rows) {
  const made = tag("table"), row = (cells, kind) => {
    const line = tag("tr");
    for (const cell of cells) line.append(tag(kind, cell));
    made.append(line);
  };
  row(head, "th");
  for (const cells of rows) row(cells, "td");
  return made;
}

const plain = v => +v.toPrecision(3) + "";

// series: [{name, points: [[x, y]], dash, dots}]; at: {x, y: {log, label, format, low, high}, width, height}
function lines(series, at) {
  const width = at.width ?? 900, height = at.height ?? 300, left = 62, right = 25, above = 12, below = 40;
  const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": at.y.label});
  const range = (axis, k) => {
    const values = series.flatMap(s => s.points.map(p => p[k])).filter(v => !axis.log || v > 0);
    return [axis.low ?? Math.min(...values), axis.high ?? Math.max(...values)];
  };
  const xs = range(at.x, 0), ys = range(at.y, 1);
  const x = scale(...xs, left, width - right, at.x.log), y = scale(...ys, height - below, above, at.y.log);
  drawGrid(svg, marks(...ys, at.y.log), y, left, width - right, at.y.format ?? plain);
  drawTicks(svg, (at.x.marks ?? marks(...xs, at.x.log)).map(v => [v, (at.x.format ?? plain)(v)]), x, height - below + 16);
  svg.append(drawn("text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle"}, at.x.label));
  series.forEach((s, i) => {
    const stroke = s.colour ?? tint(i, series.length);
    if (!s.dots)
      svg.append(drawn("polyline", {points: s.points.map(p => `${x(p[0])},${y(p[1])}`).join(" "), fill: "none", stroke,
                                      "stroke-width": 2, "stroke-dasharray": s.dash ?? "none"}));
    for (const p of s.dots || s.points.length < 12 ? s.points : []) {
      const dot = drawn("circle", {cx: x(p[0]), cy: y(p[1]), r: s.dots ? 4.5 : 3, fill: stroke});
      dot.append(drawn("title", {}, `${s.name}: ${(at.x.format ?? plain)(p[0])}, ${(at.y.format ?? plain)(p[1])}`));
      svg.append(dot);
    }
  });
  if (at.named) nameAll(svg, series.map(s => ({text: s.name, x: x(s.points[0][0]), y: y(s.points[0][1])})), width - right);
  return svg;
}

// Labels beside points, each moved up until it overlaps nothing; left of points at the right end.
function nameAll(svg, labels, end) {
  const placed = labels.map(label => ({left: label.x - 5, wide: 10, line: label.y + 4}));
  for (const label of labels.sort((a, b) => b.y - a.y)) {
    const wide = 6.2 * label.text.length, left = label.x + 8 + wide > end ? label.x - 8 - wide : label.x + 8;
    let line = label.y + 4;
    while (placed.some(p => Math.abs(p.line - line) < 11 && p.left < left + wide && left < p.left + p.wide)) line -= 2;
    placed.push({left, wide, line});
    svg.append(drawn("text", {x: left, y: line}, label.text));
  }
}

function legendOf(series) {
  const made = tag("div", undefined, {class: "legend"});
  series.forEach((s, i) => {
    const entry = tag("span"), stroke = s.colour ?? tint(i, series.length);
    entry.append(tag("b", undefined, {style: s.dash ? `background: repeating-linear-gradient(90deg, ${stroke} 0 4px, #fff 4px 7px)`
                                                    : `background: ${stroke}`}), " " + s.name);
    made.append(entry);
  });
  return made;
}

// Cells of value(layer, head), the darker the more.
function heads(layers, count, value, say, darkest, lightest = 0) {
  const share = v => darkest > lightest ? (v - lightest) / (darkest - lightest) : 0;
  return headGrid(layers, count, (layer, head) => blue(share(value(layer, head))), (layer, head) => say(value(layer, head)));
}

const sorted = values => [...values].sort((a, b) => a - b);
const middle = values => sorted(values)[Math.floor(values.length / 2)];

function drawLosses(to, loss) {
  to.append(tag("h3", "What eviction does to attention (Ada-KV, theorem 3.1)"));
  to.append(tag("p", "The L1 distance of attention's output with and without what a policy has dropped, for the queries that follow " +
    "the context, beside the bound 2 C \u03a3 (1 - F): C the largest row norm of V W_O, F the weight that stays. " +
    "Relative: over the output's own norm. Means over layers and queries; the last column is the nearest any query came to its bound." +
    (loss.left_out.length ? ` Left out, because they hold no entries of the text or were refused: ${loss.left_out.join(", ")}.` : ""),
    {class: "note"}));
  const choice = tag("select"), place = tag("div");
  loss.budgets.forEach((b, i) => choice.append(tag("option", percent(b.budget, 0), {value: i})));
  const draw = () => {
    const least = 0.003, at = loss.budgets[choice.value], names = at.rows.map(r => r.policy);
    place.replaceChildren();
    place.append(tag("p", `Rank correlation with the nats lost: ${at.rank_of_relative.toFixed(2)} of the relative loss, ` +
      `${at.rank_of_loss.toFixed(2)} of the loss.`));
    place.append(table(["policy", "relative", "loss", "bound", "own C of each head", "nats lost", "nearest to the bound"],
      at.rows.map(r => [r.policy, percent(r.relative), r.loss.toFixed(2), r.bound.toFixed(1), r.own_bound.toFixed(1), r.lost.toFixed(3),
                        percent(r.worst)])));
    const series = at.rows.map((r, i) => ({name: r.policy, points: [[Math.max(1e-3, r.relative), Math.max(least, r.lost)]], dots: true,
                                           colour: hue(r.policy, i, names.length)}));
    place.append(tag("p", `Nats a token lost (upwards; ${least} where it is less) over the relative loss.`, {class: "note"}));
    place.append(lines(series, {x: {label: "relative loss of attention", format: v => percent(v, v < 0.1 ? 1 : 0), log: true},
                                y: {label: "nats a token lost", log: true}, named: true}));
    place.append(tag("p", "Layer by layer: the loss, and the bound of the first policy of the table (dashed).", {class: "note"}));
    const layers = at.rows.map((r, i) => ({name: r.policy, points: r.layers.map((v, layer) => [layer, v]).filter(p => p[1] > 0),
                                           colour: hue(r.policy, i, names.length)}));
    if (at.rows.length)
      layers.push({name: `bound of ${at.rows[0].policy}`, points: at.rows[0].bounds.map((v, layer) => [layer, v]).filter(p => p[1] > 0),
                   dash: "5 4", colour: "#000"});
    place.append(lines(layers, {x: {label: "layer"}, y: {label: "L1 loss", log: true}}), legendOf(layers));
  };
  choice.onchange = draw;
  choice.value = Math.floor(loss.budgets.length / 2);
  const label = tag("p", "Entries kept: ");
  label.append(choice);
  to.append(label, place);
  if (loss.budgets.length && loss.budgets[0].rows.length) draw();
}

function drawConcentration(to, c) {
  to.append(tag("h3", "How few entries hold the attention (Ada-KV, figure 1)"));
  to.append(tag("p", `The share of the context that holds 95 % of what its last 32 queries pay, by layer (columns) and query head (rows); darker is ` +
    `more. Half of the heads need ${percent(middle(c.share95))} or less, and ${percent(middle(c.share99))} for 99 %; the widest ` +
    `${percent(Math.max(...c.share95))} and ${percent(Math.max(...c.share99))}.`, {class: "note"}));
  to.append(heads(c.layers, c.heads, (l, h) => c.share95[l * c.heads + h], v => percent(v), Math.max(...c.share95)));
  const curve = (name, values) => ({name, points: sorted(values).map((v, i) => [(i + 0.5) / values.length, v])});
  const series = [curve("95 % of the mass", c.share95), curve("99 %", c.share99)];
  to.append(lines(series, {x: {label: "heads, from the most concentrated", low: 0, high: 1, format: v => percent(v, 0)},
                           y: {label: "share of entries", low: 0, format: v => percent(v, 0)}, height: 260}), legendOf(series));
  to.append(tag("p", "Sparsity by layer (H2O, figure 2a): the share of weights below a hundredth of their query's largest, the mean over heads and the " +
    `last 32 queries. ${percent(Math.min(...c.sparsity))} in the densest layer.`, {class: "note"}));
  to.append(lines([{name: "sparsity", points: c.sparsity.map((v, layer) => [layer, v])}],
    {x: {label: "layer"}, y: {label: "share of weights", low: 0, high: 1, format: v => percent(v, 0)}, height: 220}));
}

function points(cloud, title) {
  const size = 176, pad = 8, above = 16;
  const svg = drawn("svg", {viewBox: `0 0 ${size} ${size + above}`, role: "img", "aria-label": title, style: "width: 19.4%"});
  const wide = Math.max(Math.max(...cloud.x) - Math.min(...cloud.x), Math.max(...cloud.y) - Math.min(...cloud.y)) || 1;
  const centre = v => (Math.max(...v) + Math.min(...v)) / 2, mx = centre(cloud.x), my = centre(cloud.y);
  const place = (v, m) => size / 2 + (size - 2 * pad) * (v - m) / wide;
  svg.append(drawn("rect", {x: 0.5, y: above, width: size - 1, height: size - 1, fill: "#fafafa", stroke: "#ddd"}));
  svg.append(drawn("text", {x: 2, y: 11, style: "font-size: 10px"}, title));
  cloud.x.forEach((v, i) => svg.append(drawn("circle", {cx: place(v, mx), cy: above + place(cloud.y[i], my), r: 1.6,
    fill: `hsl(${215 + 100 * i / cloud.x.length} 65% 55%)`, opacity: 0.6})));
  for (const i of cloud.centres)
    svg.append(drawn("circle", {cx: place(cloud.x[i], mx), cy: above + place(cloud.y[i], my), r: 3, fill: "#2a2", stroke: "#fff"}));
  return svg;
}

function drawClusters(to, c) {
  to.append(tag("h3", "How keys and values lie (SubGen, figure 1)"));
  const below = c.ratios.filter(r => r < 1).length;
  to.append(tag("p", `Keys after RoPE (above) and values (below) of a head in their two principal components, from blue (first tokens) to ` +
    `pink (last); green: ${c.centres} centres of the greedy k-center. The radius that covers all, over the points' spread, is smaller for keys than for ` +
    `values in ${below} of ${c.ratios.length} heads; half of the heads have a ratio of ${c.median} or less.`, {class: "note"}));
  for (const kind of ["keys", "values"]) {
    const row = tag("div");
    for (const s of c.shown) row.append(points(s[kind], `${kind}, layer ${s.layer}, head ${s.head} (${percent(s[kind].share, 0)})`), " ");
    to.append(row);
  }
  to.append(tag("p", "The ratio of the radii by layer and KV head: the lighter, the nearer the keys lie.", {class: "note"}));
  to.append(heads(c.layers, c.heads, (l, h) => c.ratios[l * c.heads + h], v => v.toFixed(2), Math.max(...c.ratios), Math.min(...c.ratios)));
}

const classColours = {b: "#2563c9", o: "#e8862e", g: "#7fb77e"};

function course(steps, context) {
  const cols = steps[steps.length - 1].length, canvas = tag("canvas", undefined, {width: cols, height: steps.length});
  canvas.style.cssText = `width: 100%; height: ${Math.max(120, 2 * steps.length)}px; image-rendering: pixelated; border: 1px solid #ddd;`;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, cols, steps.length);
  steps.forEach((line, y) => {
    for (let x = 0; x < line.length; ++x) {
      if (line[x] === ".") continue;
      pen.fillStyle = classColours[line[x]];
      pen.fillRect(x, y, 1, 1);
    }
  });
  pen.fillStyle = "#0004";
  pen.fillRect(context, 0, 1, steps.length);
  return canvas;
}

function bars(policy, most) {
  const height = 170, left = 62, above = 8, below = 34, layers = policy.layers, step = (900 - left - 15) / layers.length;
  const svg = drawn("svg", {viewBox: `0 0 900 ${height}`});
  const y = scale(0, most, height - below, above);
  drawGrid(svg, marks(0, most), y, left, 885, plain);
  layers.forEach(([held, missed, wasted], layer) => {
    let sum = 0;
    for (const [value, kind] of [[held, "b"], [missed, "o"], [wasted, "g"]]) {
      const bar = drawn("rect", {x: left + step * layer, width: step * 0.8, y: y(sum + value), height: Math.max(0, y(sum) - y(sum + value)),
                                   fill: classColours[kind]});
      bar.append(drawn("title", {}, `layer ${layer}: ${held.toFixed(1)} activated and cached, ${missed.toFixed(1)} missed, ` +
        `${wasted.toFixed(1)} cached for nothing`));
      svg.append(bar);
      sum += value;
    }
    if (layer % 5 === 0) svg.append(drawn("text", {x: left + step * (layer + 0.4), y: height - below + 14, "text-anchor": "middle"}, layer));
  });
  svg.append(drawn("text", {x: 470, y: height - 4, "text-anchor": "middle"}, "layer"));
  return svg;
}

function drawCourses(to, c, context) {
  to.append(tag("h3", "What is needed, and what is held (CO2, figures 3, 4 and 12)"));
  to.append(tag("p", `Entries a head at ${percent(c.budget, 0)}, on average over the steps. An entry is activated where its weight with the full cache ` +
    `exceeds ${c.gamma} of the layer's largest. co2 keeps everything for its first steps. Below: a head step by step (downwards), its entries from ` +
    `left to right, the line where the context ends.`, {class: "note"}));
  to.append(legendOf([{name: "activated and cached", colour: classColours.b}, {name: "activated, not cached", colour: classColours.o},
                      {name: "cached, not activated", colour: classColours.g}]));
  const most = Math.max(...c.policies.flatMap(p => p.layers.map(l => l[0] + l[1] + l[2])));
  for (const policy of c.policies) {
    const mean = k => policy.layers.reduce((sum, l) => sum + l[k], 0) / policy.layers.length;
    to.append(tag("p", `${policy.policy}: ${percent(mean(0) / (mean(0) + mean(1)))} of the activated entries are cached, ` +
      `${percent(mean(0) / (mean(0) + mean(2)))} of the cached are activated.`));
    to.append(bars(policy, most));
    for (const s of policy.courses) {
      to.append(tag("p", `${policy.policy}, layer ${s.layer}, head ${s.head}`, {class: "note", style: "margin: .4em 0 0"}), course(s.steps, context));
    }
  }
  to.append(tag("p", "Which entry is replaced, of those the score may choose from: its place among them by age, right the one that has just left the " +
    "newest (replacement index). " + c.policies.map(p => `${p.policy}: ${percent(p.replaced.late)} of ${p.replaced.count} above 0.9, ` +
    `${percent(p.replaced.newest)} the newest itself`).join("; ") + ".", {class: "note"}));
  const series = c.policies.map(p => ({name: p.policy, points: p.replaced.histogram.map(
    (n, i) => [(i + 0.5) / p.replaced.histogram.length, n / Math.max(1, p.replaced.count)])}));
  to.append(lines(series, {x: {label: "replacement index, oldest to newest", low: 0, high: 1},
                           y: {label: "share of replacements", low: 0, format: v => percent(v, 0)}, height: 220}), legendOf(series));
}

function drawMasks(to, m) {
  to.append(tag("h3", "Patterns that do not look, and heavy hitters (H2O, tables 2 and 8)"));
  to.append(tag("p", "Nats a token lost where each query that follows the context sees only so many entries: the last ones, those of Sparse Transformer's " +
    "strided and fixed patterns, or its own largest weights; alone (dashed), or with half of the budget for heavy hitters. Last column: the whole " +
    "text under the mask, as in the paper.", {class: "note"}));
  const names = [...new Set(m.rows.map(r => r.mask.split(" ")[0]))];
  const series = m.rows.map(r => ({name: r.mask, points: r.lost.map((v, i) => [m.budgets[i], v]), dash: r.heavy_hitters ? undefined : "5 4",
                                   colour: tint(names.indexOf(r.mask.split(" ")[0]), names.length)}));
  to.append(lines(series, {x: {label: "entries seen", log: true, marks: m.budgets, format: v => percent(v, 0)},
                           y: {label: "nats a token lost", low: Math.min(0, ...m.rows.flatMap(r => r.lost))}}), legendOf(series));
  to.append(table(["mask", ...m.budgets.map(b => percent(b, 0)), `whole text, ${percent(m.whole_budget, 0)}`],
    m.rows.map(r => [r.mask, ...r.lost.map(v => v.toFixed(3)), r.whole.toFixed(3)])));
}

function drawSketches(to, s) {
  if (!s) return;
  to.append(tag("h3", "The sketch and the subset against length (SubGen, theorem 1)"));
  to.append(tag("p", `Median relative error of attention's output, before W_O, of the queries that follow n tokens, in a head of each of the first ` +
    `${s.layers} layers; left at ${percent(s.share, 0)} of the entries, right at ${s.of_memory[0].memory}. subgen: half of them the last tokens, the rest ` +
    `samples of values and of clusters of keys. Largest weights: what nobody can know.`, {class: "note"}));
  const kinds = [["subgen", "subgen's samples"], ["centres", "last + k-center"], ["heavy", "last + heavy hitters"], ["sinks", "last + 4 first"],
                 ["best", "largest weights"]];
  const of = rows => kinds.map(([key, name]) => ({name, points: rows.map(r => [r.n, Math.max(1e-4, r[key])])}));
  const both = [of(s.of_share), of(s.of_memory)], row = tag("div");
  for (const series of both) {
    const svg = lines(series, {x: {label: "tokens", log: true, marks: s.of_share.map(r => r.n)}, y: {label: "relative error", log: true},
                               width: 450, height: 280});
    svg.style.width = "49%";
    row.append(svg, " ");
  }
  to.append(row, legendOf(both[0]));
  to.append(tag("p", `Clusters that SubGen needs for the keys of n tokens at the radius that ${Math.round(s.clusters[0].mean)} cover at the ` +
    `shortest; dashed: in proportion to n.`, {class: "note"}));
  const counts = [{name: "clusters, mean over the heads", points: s.clusters.map(r => [r.n, r.mean])},
                  {name: "in proportion", points: s.clusters.map(r => [r.n, s.clusters[0].mean * r.n / s.clusters[0].n]), dash: "5 4", colour: "#888"}];
  to.append(lines(counts, {x: {label: "tokens", log: true, marks: s.clusters.map(r => r.n)}, y: {label: "clusters", log: true}, height: 240}),
            legendOf(counts));
}

function drawAnatomy() {
  for (const text of data.anatomy) {
    const section = tag("section");
    section.append(tag("h2", `Anatomy of ${text.text}`));
    section.append(tag("p", `${text.context} tokens from the text's middle, and the ${text.given} after them. Values are of a plain forward pass with the ` +
      `file's own weights; which entries a policy keeps is the engine's.`, {class: "note"}));
    drawLosses(section, text.loss);
    drawConcentration(section, text.concentration);
    drawClusters(section, text.clusters);
    drawCourses(section, text.courses, text.context);
    drawMasks(section, text.masks);
    drawSketches(section, text.sketches);
    $("anatomy").append(section);
  }
}
drawAnatomy();
