// Draws the plots and tables of the tasks.

const $ = id => document.getElementById(id);
const arms = [...new Set(data.summaries.map(s => s.arm))];
// Eight distinguishable colours times three kinds of lines and points: 24 arms look different.
const COLOURS =
    ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#b8860b', '#56b4e9', '#6a3d9a', '#7f7f7f'];
const DASHES = ['none', '7 3', '2 3'], POINTS = ['circle', 'square', 'triangle'];
const looks = arm => {
  if (arm === 'oracle') return {colour: '#000', dash: '5 4', point: 'circle'};
  const i = arms.filter(a => a !== 'oracle').indexOf(arm),
        round = Math.floor(i / COLOURS.length) % DASHES.length;
  return {colour: COLOURS[i % COLOURS.length], dash: DASHES[round], point: POINTS[round]};
};
function drawPoint(x, y, {colour, point}) {
  if (point === 'circle') return drawn('circle', {cx: x, cy: y, r: 3.5, fill: colour});
  const corners = point === 'square' ? [[-3.2, -3.2], [3.2, -3.2], [3.2, 3.2], [-3.2, 3.2]] :
                                       [[0, -4.4], [4.2, 3.4], [-4.2, 3.4]];
  return drawn(
      'polygon',
      {points: corners.map(([dx, dy]) => `${x + dx},${y + dy}`).join(' '), fill: colour});
}
const hidden = new Set();
$("title").textContent = data.title;
$("settings").textContent = data.settings;
$("incomplete").hidden = data.complete;
for (const sentence of data.winners) $("winners").append(tag("p", sentence, {class: "best"}));

// The end of the scale, excluding arms several times as high as most: one collapsed arm would
// flatten all others. Also returns the arms beyond it.
function scaleOf(shown, value) {
  const tops = arms.map(arm => [arm, Math.max(...shown.filter(s => s.arm === arm).map(s => value(s).mean + value(s).half_width))])
    .filter(([, top]) => isFinite(top)).sort((a, b) => a[1] - b[1]);
  const median = tops.length ? tops[tops.length >> 1][1] : 0;
  const within = tops.filter(([, top]) => top <= 3 * median);
  return {most: Math.max(0.01, ...within.map(([, top]) => top)), beyond: tops.filter(t => !within.includes(t)).map(([arm]) => arm)};
}

// Lines of `value(summary)` over the budgets; `crowned`: circles the best arm of each budget.
function plot(summaries, title, value, bottom, top, crowned) {
  const width = 900, height = 320, left = 55, right = 25, above = 12, below = 36;
  const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title});
  const shown = summaries.filter(s => !hidden.has(s.arm));
  const budgets = [...new Set(summaries.map(s => s.budget))].sort((a, b) => a - b);
  const margin = 2 * arms.length;
  const x = scale(budgets[0], budgets[budgets.length - 1], left + margin, width - right - margin, true);
  const {most, beyond} = top === undefined ? scaleOf(shown, value) : {most: top, beyond: []};
  const least = bottom ?? Math.min(0, ...shown.map(s => value(s).mean - value(s).half_width));
  const inside = scale(least, most, height - below, above), y = v => inside(Math.min(most, Math.max(least, v)));
  // Shifted sideways, so that bars do not overlap.
  const beside = arm => 2.5 * (arms.indexOf(arm) - (arms.length - 1) / 2);
  drawGrid(svg, marks(least, most), y, left, width - right, v => +v.toFixed(3));
  if (beyond.length)
    svg.append(drawn("text", {x: width - right, y: above + 10, "text-anchor": "end"}, `beyond the scale: ${beyond.join(", ")}`));
  drawTicks(svg, budgets.map(b => [b, `${+(100 * b).toFixed(1)} %`]), x, height - 18);
  svg.append(drawn("text", {x: (left + width) / 2, y: height - 3, "text-anchor": "middle"}, "entries kept"));
  for (const arm of arms) {
    const points = shown.filter(s => s.arm === arm && value(s).count > 0).sort((a, b) => a.budget - b.budget);
    if (!points.length) continue;
    const look = looks(arm), stroke = look.colour;
    svg.append(drawn('polyline', {
      points: points.map(s => `${x(s.budget) + beside(arm)},${y(value(s).mean)}`).join(' '),
      fill: 'none',
      stroke,
      'stroke-width': 2,
      'stroke-dasharray': look.dash
    }));
    for (const s of points) {
      const v = value(s);
      svg.append(drawn("line", {x1: x(s.budget) + beside(arm), x2: x(s.budget) + beside(arm), y1: y(v.mean - v.half_width), y2: y(v.mean + v.half_width),
                                  stroke, opacity: 0.4}));
      if (crowned && s.best)
        svg.append(drawn('circle', {
          cx: x(s.budget) + beside(arm),
          cy: y(v.mean),
          r: 8,
          fill: 'none',
          stroke,
          'stroke-width': 2.5
        }));
      const dot = drawPoint(x(s.budget) + beside(arm), y(v.mean), look);
      dot.append(drawn("title", {}, `${arm} at ${(100 * s.budget).toFixed(0)} %: ${v.mean.toFixed(3)} ± ${v.half_width.toFixed(3)} (${v.count})`));
      svg.append(dot);
    }
  }
  return svg;
}

// The best arms and their budgets: ["echo at 10 %, 20 %", "h2o at 40 %"].
function winnersOf(summaries) {
  const best = summaries.filter(s => s.best).sort((a, b) => a.budget - b.budget);
  return [...new Set(best.map(s => s.arm))].map(
      arm => `${arm} at ${
          best.filter(s => s.arm === arm)
              .map(s => `${+ (100 * s.budget).toFixed(1)} %`)
              .join(', ')}`);
}

// A row per arm, the best first, a column per budget; cells are `cell`, marked by `look(row)`.
function tableOf(rows, look = row => row.best ? "better" : "") {
  const distinct = values => [...new Set(values)];
  const budgets = distinct(rows.map(row => row.budget)).sort((a, b) => a - b);
  const mean = arm => {
    const values = rows.filter(row => row.arm === arm).map(row => row.score);
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  };
  const table = tag("table");
  const line = cells => { const made = tag("tr"); made.append(...cells); table.append(made); };
  line(["policy", ...budgets.map(b => `${+(100 * b).toFixed(1)} %`)].map(name => tag("th", name)));
  for (const arm of distinct(rows.map(row => row.arm)).sort((a, b) => mean(b) - mean(a)))
    line([tag("td", arm), ...budgets.map(budget => {
      const row = rows.find(other => other.arm === arm && other.budget === budget);
      const cell = tag("td", row ? row.cell : "-");
      if (row) Object.assign(cell, {className: look(row), title: row.count ? `${row.count} cases` : ""});
      return cell;
    })]);
  return table;
}

function drawTasks() {
  $("tasks").replaceChildren();
  for (const task of [...new Set(data.summaries.map(s => s.task))]) {
    const summaries = data.summaries.filter(s => s.task === task);
    const section = document.createElement("section");
    const add = (title, value, bottom, top, crowned) => {
      const heading = document.createElement("h2");
      heading.textContent = `${task}: ${title}`;
      section.append(heading, plot(summaries, title, value, bottom, top, crowned));
    };
    const winners = winnersOf(summaries);
    if (summaries[0].retrieval) {
      add('share found of what the full cache finds', s => s.found, 0, 1, true);
    } else {
      add('nats a token lost over the full cache', s => s.lost, undefined, undefined, true);
      add("next tokens as with the full cache", s => s.agreement, undefined, 1);
    }
    if (winners.length)
      section.append(tag('p', `Best, ringed above: ${winners.join('; ')}.`, {class: 'best'}));
    section.append(tableOf(summaries));
    $("tasks").append(section);
  }
}

// Tables of differences between arms: a row per arm, a column per budget.
function drawDifferences() {
  const distinct = values => [...new Set(values)];
  for (const against of distinct(data.differences.map(d => d.against))) {
    for (const task of distinct(data.differences.map(d => d.task))) {
      const those = data.differences.filter(d => d.against === against && d.task === task);
      if (!those.length) continue;
      const retrieval = those[0].retrieval;
      $("differences").append(tag("h2", `${task}: ${retrieval ? "found more" : "nats a token more"} than ${against}`),
                              tableOf(those, d => d.verdict));
    }
  }
  if (data.differences.length) {
    $("differences").append(tag("p", "Means and 95 % intervals over the same cases; what is clearly better is green, what is clearly worse red.", {class: "note"}));
  }
}

function drawHeads() {
  $("kept").hidden = data.summaries.every(s => !s.kept.length);  // over a daemon
  if ($("kept").hidden) return;
  const s = data.summaries[$("heads").value];
  const most = Math.max(...s.kept), kept = (layer, head) => s.kept[layer * data.heads + head];
  const grid = headGrid(data.layers, data.heads, (layer, head) => blue(most > 0 ? kept(layer, head) / most : 0),
      (layer, head) => `${kept(layer, head).toFixed(0)} entries, ${(100 * kept(layer, head) / data.context).toFixed(1)} %`);
  const mean = s.kept.reduce((sum, kept) => sum + kept, 0) / s.kept.length;
  $('heat').replaceChildren(
      tag('p',
          `${mean.toFixed(0)} entries a head on average (${
              (100 * mean / data.context).toFixed(1)} %), ${most.toFixed(0)} in the fullest.`),
      grid);
}

for (const arm of arms) {
  const label = document.createElement("label");
  const look = looks(arm), sample = drawn('svg', {viewBox: '0 0 34 10'});
  sample.append(
      drawn('line', {
        x1: 0,
        x2: 34,
        y1: 5,
        y2: 5,
        stroke: look.colour,
        'stroke-width': 2,
        'stroke-dasharray': look.dash
      }),
      drawPoint(17, 5, look));
  label.append(sample, arm);
  label.onclick = () => {
    hidden.has(arm) ? hidden.delete(arm) : hidden.add(arm);
    label.style.opacity = hidden.has(arm) ? 0.3 : 1;
    drawTasks();
  };
  $("legend").append(label);
}
data.summaries.forEach((s, i) => {
  const option = document.createElement("option");
  option.value = i;
  option.textContent = `${s.arm} at ${+(100 * s.budget).toFixed(1)} %, ${s.task}`;
  $("heads").append(option);
});
$("heads").onchange = drawHeads;
drawTasks();
drawDifferences();
if (data.summaries.length) drawHeads();
for (const id of ["about", "kept"]) $(id).hidden = !data.summaries.length;
