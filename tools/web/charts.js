// Shared by the plots of all reports: elements, scales of axes, round values for marks.

// Text is set as text, never as markup: part of it comes from servers and users.
function tag(name, text, attributes = {}) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function drawn(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Maps values to coordinates; a logarithmic scale puts values below `low` at its begin.
function scale(low, high, from, to, log) {
  const f = log ? v => Math.log(Math.max(v, low)) : v => v;
  return v => from + (to - from) * (high > low ? (f(v) - f(low)) / (f(high) - f(low)) : 0.5);
}

// Round values for the marks of an axis, about `count`.
function marks(low, high, log, count = 5) {
  const found = [];
  if (log) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
      for (const digit of [1, 2, 5]) found.push(+(digit * 10 ** power).toPrecision(3));
    const inside = found.filter(v => v >= low * 0.999 && v <= high * 1.001);
    return inside.length > 8 ? inside.filter(v => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9) : inside;
  }
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(f => f * power >= rough * 0.999) * power;
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(+v.toPrecision(12));
  return found;
}

// A line across the plot at each value, and its name to the left.
function drawGrid(svg, values, y, left, right, name) {
  for (const v of values) {
    svg.append(drawn("line", {x1: left, x2: right, y1: y(v), y2: y(v), class: "grid"}));
    svg.append(drawn("text", {x: left - 6, y: y(v) + 4, "text-anchor": "end"}, name(v)));
  }
}

// The names of values along the bottom. `ticks`: [[value, name]].
function drawTicks(svg, ticks, x, at) {
  for (const [value, name] of ticks) svg.append(drawn("text", {x: x(value), y: at, "text-anchor": "middle"}, name));
}
