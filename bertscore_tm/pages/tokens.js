"use strict";
// What the page of an alignment and a report share: the data, elements, and two texts with their matches.
async function readData() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

// Texts only ever become text nodes.
function create(namespace, tag, attributes, children) {
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const html = (tag, attributes = {}, ...children) => create("http://www.w3.org/1999/xhtml", tag, attributes, children);
const svg = (tag, attributes = {}, ...children) => create("http://www.w3.org/2000/svg", tag, attributes, children);
// One of several elements is in the order of Tab; arrow keys move to the others, which may be in rows, with gaps.
function rove(elements, rowLength) {
  const present = elements.filter(Boolean);
  for (const element of present) {
    element.setAttribute("tabindex", element === present[0] ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: rowLength, ArrowUp: -rowLength }[event.key];
      let place = elements.indexOf(element) + step;
      while (elements[place] === null) place += step;
      if (!elements[place]) return;
      event.preventDefault();
      for (const other of present) other.setAttribute("tabindex", other === elements[place] ? "0" : "-1");
      elements[place].focus();
    });
  }
  return present;
}
const format = (x, digits = 4) => (x === null || Number.isNaN(x) ? "–" : x.toFixed(digits));
// Shades begin at the lowest similarity of a page.
const lowestSimilarity = (alignments) =>
  alignments.flatMap(({ sides }) => sides).reduce((least, side) => side.best.reduce((a, b) => Math.min(a, b), least), 0.9);

// Tokens that follow each other within a word, with their mean similarity; of scripts without spaces each token.
const inWord = (c) => /[\p{L}\p{M}\p{N}]/u.test(c) && !/[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u.test(c);
function wordsOf(alignment, s) {
  const words = [];
  if (!alignment) return words;
  const { tokens, gaps, best, weights } = alignment.sides[s];
  tokens.forEach((token, i) => {
    const weight = weights?.[i] ?? 1, text = token.trim(), before = words.at(-1);
    const isApart = gaps ? gaps[i] !== "" : token.startsWith(" ");
    if (before && !isApart && inWord([...before.text].at(-1) ?? "") && inWord([...text][0] ?? "")) {
      before.text += text;
      before.sum += weight * best[i];
      before.weight += weight;
    } else words.push({ text, sum: weight * best[i], weight });
  });
  return words.filter(({ text, weight }) => text && weight).map((word) => ({ ...word, best: word.sum / word.weight }));
}

// A word in a sentence or a table, where a token of thousands of characters is cut; its title is the whole word.
const CHARACTERS_IN_LINE = 50;
function wordInLine(text) {
  if (text.length <= CHARACTERS_IN_LINE) return html("bdi", {}, text);
  return html("bdi", { title: text }, `${text.slice(0, CHARACTERS_IN_LINE)}…`);
}

function alignedWords(alignment, lowest, container, output) {
  const marks = alignment.sides.map((side, s) => rove(side.tokens.map((token, i) => {
    const mark = html("mark", { "data-side": s, "data-token": i }, side.gaps ? token : token.trimStart());
    mark.style.setProperty("--share", Math.max(0, (side.best[i] - lowest) / (1 - lowest)).toFixed(3));
    return mark;
  })));
  const link = svg("svg", { class: "link", "aria-hidden": "true" });
  let shown = [];
  function clear() {
    for (const mark of shown) mark.classList.remove("on", "match");
    shown = [];
    link.replaceChildren();
  }
  function show(event) {
    const mark = event.target.closest("mark");
    if (mark === null) return;
    clear();
    const s = Number(mark.dataset.side), i = Number(mark.dataset.token), side = alignment.sides[s];
    const match = marks[1 - s][side.matches[i]];
    const weight = side.weights ? `, weight ${format(side.weights[i], 3)}` : "";
    output.replaceChildren(wordInLine(mark.textContent), " matches ",
      match ? wordInLine(match.textContent) : "a special token",
      `: similarity ${format(side.best[i], 3)}${weight}, adds ${format(side.shares[i])} to ${"PR"[s]}`);
    shown = match ? [mark, match] : [mark];
    mark.classList.add("on");
    if (!match) return;
    match.classList.add("match");
    const from = container.getBoundingClientRect();
    const [one, two] = shown.map((element) => element.getBoundingClientRect()).sort((p, q) => p.top - q.top);
    link.append(svg("line", { x1: one.left + one.width / 2 - from.left, y1: one.bottom - from.top,
      x2: two.left + two.width / 2 - from.left, y2: two.top - from.top }));
  }
  for (const type of ["pointerover", "focusin"]) container.addEventListener(type, show);
  for (const type of ["pointerleave", "focusout"]) container.addEventListener(type, clear);
  const spaced = (s) => {
    const { tokens, gaps } = alignment.sides[s];
    // Without the places of the tokens, the text is put together from them.
    const gap = (i) => (gaps ? gaps[i] : i > 0 && tokens[i].startsWith(" ") ? " " : "");
    return [...marks[s].flatMap((mark, i) => [gap(i), mark]), gaps ? gaps.at(-1) : ""];
  };
  return { words: [spaced(0), spaced(1)], link };
}
const textOfPair = (label, ...parts) => [html("h2", {}, label), html("p", { class: "words", dir: "auto", lang: "" }, ...parts)];
function drawPair(title, candidate, references, alignment, lowest) {
  const container = html("div", { class: "pair" }, ...(title ? [html("h2", {}, title)] : []));
  const output = html("output", { "aria-live": "polite" });
  const words = (label, children) => container.append(...textOfPair(label, ...children));
  const found = alignment && alignedWords(alignment, lowest, container, output);
  const named = (label, s) => found && Math.abs(alignment.sides[s].special) >= 5e-4
    ? `${label} (special tokens add ${format(alignment.sides[s].special)} to ${"PR"[s]})` : label;
  const weakest = (s) => {
    const lost = ({ best, weight }) => weight * (1 - best);
    const first = wordsOf(alignment, s).filter((word) => lost(word) > 5e-4).sort((p, q) => lost(q) - lost(p)).slice(0, 3);
    if (first.length) container.append(html("p", {}, html("small", {}, `lowers ${"PR"[s]} most: `, ...first.flatMap(
      ({ text, best }, n) => [n ? " · " : "", wordInLine(text), ` ${format(best, 3)}`]))));
  };
  words(named("candidate", 0), found ? found.words[0] : [candidate]);
  if (found) weakest(0);
  references.forEach((text, i) => {
    const own = alignment?.scores[i]?.map((x, n) => `${["P", "R", "F1"][n]} ${format(x)}`).join(" ");
    const label = references.length > 1 ? `reference ${i + 1}${own ? `: ${own}` : ""}` : "reference";
    const isAligned = found && alignment.reference === i;
    words(isAligned ? named(label, 1) : label, isAligned ? found.words[1] : [text]);
    if (isAligned) weakest(1);
  });
  if (found) {
    output.append("Point at a token, or use Tab and the arrow keys, to see its match. ",
      `Shades: similarity ${format(lowest, 2)} to 1.`,
      alignment.sides.every((side) => side.gaps) ? "" : " This tokenizer has no offsets: the texts are put together from their tokens.");
    container.append(output, found.link);
  }
  return container;
}
