// Draws the prompt of a request, shaded by the entries that its cache kept (client/explain_page.cc).

const $ = id => document.getElementById(id);
const percent = share => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const texts = textsOf(data.texts, data.lengths);
const kept = data.kept.map(bytesOf);  // [layers * heads] a bit per token
const holds = (index, token) => kept[index][token >> 3] >> (token & 7) & 1;
const shareOf = index => texts.filter((_, token) => holds(index, token)).length / texts.length;
const shares = kept.map((_, index) => shareOf(index));

function chosen() {
  const layer = $('layer').value, head = $('head').value;
  return kept.map((_, index) => index)
      .filter(
          index => (layer === 'all' || Math.floor(index / data.heads) === +layer) &&
              (head === 'all' || index % data.heads === +head));
}

function drawText() {
  const heads = chosen(),
        counts = texts.map((_, token) => heads.filter(index => holds(index, token)).length);
  const gone = counts.filter(count => count === 0).length;
  $('legend').textContent = `The darker, the more of ${heads.length} head${
                                heads.length > 1 ? 's' : ''} keep the token; pale: none of them` +
      ` (${gone} of ${texts.length} tokens).`;
  $('text').replaceChildren(shadedText(
      texts, token => counts[token] / heads.length,
      token => `token ${token}: kept by ${counts[token]} of ${heads.length}`));
}

function drawHeads() {
  const share = (layer, head) => shares[layer * data.heads + head];
  $('heads').append(headGrid(
      data.layers, data.heads,
      (layer, head) => ({
        fill: 'rgb(255 176 32)',
        'fill-opacity': 0.08 + 0.92 * share(layer, head),
        stroke: 'currentColor',
        'stroke-opacity': 0.2
      }),
      (layer, head) => percent(share(layer, head)),
      (layer, head) => {
        $('layer').value = layer;
        $('head').value = head;
        drawText();
      }));
}

function fill(select, count) {
  select.append(tag('option', 'all', {value: 'all'}));
  for (let i = 0; i < count; ++i) select.append(tag('option', i, {value: i}));
  select.onchange = drawText;
}

const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
const byNone = texts.filter((_, token) => kept.every((_, index) => !holds(index, token))).length;
$('title').textContent = `The cache kept ${percent(mean)} of the prompt's entries; ${byNone} of ${
    texts.length} tokens are gone from every head`;
$('request').textContent = data.request;
fill($('layer'), data.layers);
fill($('head'), data.heads);
drawText();
drawHeads();
