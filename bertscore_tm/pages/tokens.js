// Two texts with their tokens, their words and their matches, as the pages of an alignment and of a report show them.
import { format, html, rove, svg } from "./elements.js";

// An alignment has two sides, the candidate and the reference.
const SIDES = ["candidate", "reference"];
const OTHER_SIDE = { candidate: "reference", reference: "candidate" };
// The score to which the tokens of a side add.
const SCORE_OF_SIDE = { candidate: "P", reference: "R" };

// Shades begin at the lowest similarity of a page.
export function lowestSimilarity(alignments) {
  let lowest = 0.9;
  for (const { sides } of alignments)
    for (const side of Object.values(sides))
      for (const similarity of side.best) lowest = Math.min(lowest, similarity);
  return lowest;
}

// Tokens that follow each other within a word, with their mean similarity; of scripts without spaces each token.
const inWord = (c) => /[\p{L}\p{M}\p{N}]/u.test(c) && !/[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u.test(c);
export function wordsOf(alignment, name) {
  const words = [];
  if (!alignment) return words;
  const { tokens, gaps, best, weights } = alignment.sides[name];
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
export function wordInLine(text) {
  if (text.length <= CHARACTERS_IN_LINE) return html("bdi", {}, text);
  return html("bdi", { title: text }, `${text.slice(0, CHARACTERS_IN_LINE)}…`);
}

// The tokens of both texts as elements. Pointing at one shows its match, with a line, and its numbers in the output.
function alignedWords(alignment, lowest, container, output) {
  const marks = {};
  for (const name of SIDES) {
    const { tokens, gaps, best } = alignment.sides[name];
    marks[name] = rove(tokens.map((token, i) => {
      const mark = html("mark", { "data-side": name, "data-token": i }, gaps ? token : token.trimStart());
      mark.style.setProperty("--share", Math.max(0, (best[i] - lowest) / (1 - lowest)).toFixed(3));
      return mark;
    }));
  }
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
    const name = mark.dataset.side, i = Number(mark.dataset.token), side = alignment.sides[name];
    // The index of a special token, -1, has no mark.
    const match = marks[OTHER_SIDE[name]][side.matches[i]];
    const weight = side.weights ? `, weight ${format(side.weights[i], 3)}` : "";
    output.replaceChildren(wordInLine(mark.textContent), " matches ",
      match ? wordInLine(match.textContent) : "a special token",
      `: similarity ${format(side.best[i], 3)}${weight}, adds ${format(side.shares[i])} to ${SCORE_OF_SIDE[name]}`);
    shown = match ? [mark, match] : [mark];
    mark.classList.add("on");
    if (!match) return;
    match.classList.add("match");
    const from = container.getBoundingClientRect();
    const [upper, lower] = shown.map((element) => element.getBoundingClientRect()).sort((p, q) => p.top - q.top);
    link.append(svg("line", { x1: upper.left + upper.width / 2 - from.left, y1: upper.bottom - from.top,
      x2: lower.left + lower.width / 2 - from.left, y2: lower.top - from.top }));
  }
  for (const type of ["pointerover", "focusin"]) container.addEventListener(type, show);
  for (const type of ["pointerleave", "focusout"]) container.addEventListener(type, clear);
  const words = {};
  for (const name of SIDES) {
    const { tokens, gaps } = alignment.sides[name];
    // Without the places of the tokens, the text is put together from them.
    const gapBefore = (i) => {
      if (gaps) return gaps[i];
      return i > 0 && tokens[i].startsWith(" ") ? " " : "";
    };
    words[name] = marks[name].flatMap((mark, i) => [gapBefore(i), mark]);
    if (gaps) words[name].push(gaps.at(-1));
  }
  return { words, link };
}
export const textOfPair = (label, ...parts) =>
  [html("h2", {}, label), html("p", { class: "words", dir: "auto", lang: "" }, ...parts)];

// A candidate and its references; with an alignment, the tokens of the candidate and of the aligned reference.
export function drawPair(title, candidate, references, alignment, lowest) {
  const container = html("div", { class: "pair" }, ...(title ? [html("h2", {}, title)] : []));
  if (!alignment) {
    container.append(...textOfPair("candidate", candidate));
    references.forEach((text, i) =>
      container.append(...textOfPair(references.length > 1 ? `reference ${i + 1}` : "reference", text)));
    return container;
  }
  const output = html("output", { "aria-live": "polite" });
  const { words, link } = alignedWords(alignment, lowest, container, output);
  const drawSide = (label, name) => {
    const special = alignment.sides[name].special;
    const isNamed = Math.abs(special) >= 5e-4;
    const added = isNamed ? ` (special tokens add ${format(special)} to ${SCORE_OF_SIDE[name]})` : "";
    container.append(...textOfPair(label + added, ...words[name]), ...weakestWords(alignment, name));
  };
  drawSide("candidate", "candidate");
  references.forEach((text, i) => {
    const scores = alignment.scores[i];
    let label = references.length > 1 ? `reference ${i + 1}` : "reference";
    if (references.length > 1 && scores)
      label += `: P ${format(scores.precision)} R ${format(scores.recall)} F1 ${format(scores.f1)}`;
    if (alignment.reference === i) drawSide(label, "reference");
    else container.append(...textOfPair(label, text));
  });
  const hasGaps = SIDES.every((name) => alignment.sides[name].gaps);
  output.append("Point at a token, or use Tab and the arrow keys, to see its match. ",
    `Shades: similarity ${format(lowest, 2)} to 1.`,
    hasGaps ? "" : " This tokenizer has no offsets: the texts are put together from their tokens.");
  container.append(output, link);
  return container;
}
// The three words that lower a side's score most, as a line.
function weakestWords(alignment, name) {
  const lost = ({ best, weight }) => weight * (1 - best);
  const weakest = wordsOf(alignment, name).filter((word) => lost(word) > 5e-4)
    .sort((p, q) => lost(q) - lost(p)).slice(0, 3);
  if (!weakest.length) return [];
  const words = weakest.flatMap(({ text, best }, n) => [n ? " · " : "", wordInLine(text), ` ${format(best, 3)}`]);
  return [html("p", {}, html("small", {}, `lowers ${SCORE_OF_SIDE[name]} most: `, ...words))];
}
