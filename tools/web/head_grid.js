// A grid of all KV heads, a column a layer; shared by hydrant's and hydrant-eval's pages.

const blue = share => ({fill: `hsl(215 70% ${95 - 65 * share}%)`});

// paint(layer, head): attributes of the cell; say(layer, head): its tooltip; choose(layer, head): on
// a click, may be left out.
function headGrid(layers, heads, paint, say, choose) {
  const cell = Math.min(26, 860 / layers), left = 40, above = 18;
  const svg = drawn("svg", {viewBox: `0 0 900 ${above + cell * heads + 4}`, role: "img", "aria-label": "heads by layer"});
  for (let layer = 0; layer < layers; ++layer) {
    if (layer % 5 === 0) svg.append(drawn("text", {x: left + cell * layer, y: 12}, layer));
    for (let head = 0; head < heads; ++head) {
      const box = drawn("rect", {x: left + cell * layer, y: above + cell * head, width: cell - 2, height: cell - 2, ...paint(layer, head)});
      box.append(drawn("title", {}, `layer ${layer}, head ${head}: ${say(layer, head)}`));
      if (choose) box.onclick = () => choose(layer, head);
      svg.append(box);
    }
  }
  for (let head = 0; head < heads; ++head)
    svg.append(drawn("text", {x: 4, y: above + cell * head + cell * 0.65}, `h${head}`));
  return svg;
}
