// Draws the first case's context, shaded by the share of KV heads that keep each token, of one arm
// or of two side by side (tools/eval/kept_text.h).

function drawKeptText() {
  const kept = data.kept_text;
  $("kept_text").hidden = !kept;
  if (!kept) return;
  const texts = textsOf(kept.texts, kept.lengths), place = $("kept_text_columns");
  const column = chosen => {
    const made = tag("div"), choice = tag("select"), text = tag("div");
    kept.arms.forEach((arm, i) => choice.append(tag("option", `${arm.arm} at ${+(100 * arm.budget).toFixed(1)} %`, {value: i})));
    const draw = () => {
      const shares = bytesOf(kept.arms[choice.value].shares), gone = shares.filter(share => share === 0).length;
      text.replaceChildren(tag("p", `${gone} of ${texts.length} tokens are gone from every head.`, {class: "note"}),
        shadedText(texts, token => shares[token] / 255, token => `token ${token}: ${Math.round(shares[token] / 2.55)} % of the heads`));
    };
    choice.value = chosen;
    choice.onchange = draw;
    made.append(choice, text);
    draw();
    return made;
  };
  place.append(column(0));
  if (kept.arms.length > 1) place.append(column(1));
}
drawKeptText();
