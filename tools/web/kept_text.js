// A text shaded by the share of KV heads that keep each of its tokens; shared by hydrant's and
// hydrant-eval's pages.

const bytesOf = base64 => Uint8Array.from(atob(base64), c => c.charCodeAt(0));

// The texts of tokens from their bytes, concatenated, and their lengths. A character that several
// tokens make stands at the last of them.
function textsOf(base64, lengths) {
  const bytes = bytesOf(base64), decoder = new TextDecoder();
  let at = 0;
  return lengths.map(length => decoder.decode(bytes.subarray(at, at += length), {stream: true}));
}

// A paragraph of the texts; share(i): of token i, say(i): its tooltip.
function shadedText(texts, share, say) {
  const text = tag("p", undefined, {class: "shaded"});
  texts.forEach((piece, i) => {
    const token = tag("span", piece, {title: say(i)});
    token.style.backgroundColor = `rgb(255 176 32 / ${share(i)})`;
    if (share(i) === 0) token.className = "gone";
    text.append(token);
  });
  return text;
}
