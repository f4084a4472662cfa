// Two texts with their tokens, their words and their matches, as the pages of an alignment and of a report show them.
import { format, html, rove, svg } from "./elements.js";

// An alignment has two sides, the candidate and the reference.
const SIDES = ["candidate", "reference"];
const OTHER_SIDE = { candidate: "reference", reference: "candidate" };
// The score to which the tokens of a side add.
const SCORE_OF_SIDE = { candidate: "P", reference: "R" };
// A word in a line or a table is cut after as many characters, because a token may have thousands.
const CHARACTERS_IN_LINE = 50;
// Half of the last digit that is shown: smaller numbers would be shown as 0.
const LEAST_SHOWN = 5e-4;

// Shades begin at the lowest similarity of a page, at most at 0.9.
export function lowestSimilarity(alignments) {
  let lowest = 0.9;
  for (const { sides } of alignments) {
    for (const side of Object.values(sides)) {
      for (const similarity of side.best) lowest = Math.min(lowest, similarity);
    }
  }
  return lowest;
}

// Whether a character may be inside of a word. Scripts without spaces between words have no such characters.
function isOfWord(character) {
  const hasNoSpaces = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u.test(character);
  return /[\p{L}\p{M}\p{N}]/u.test(character) && !hasNoSpaces;
}

// The words of a side with their mean similarities: tokens that follow each other within a word, in scripts without
// spaces each token.
export function wordsOf(alignment, name) {
  if (!alignment) return [];
  const { tokens, gaps, best, weights } = alignment.sides[name];
  const words = [];
  tokens.forEach((token, i) => {
    const weight = weights?.[i] ?? 1;
    const text = token.trim();
    const before = words.at(-1);
    // Tokens without places in the text begin with a space if they are apart.
    const isApart = gaps ? gaps[i] !== "" : token.startsWith(" ");
    const lastCharacter = [...(before?.text ?? "")].at(-1) ?? "";
    const firstCharacter = [...text][0] ?? "";
    if (before && !isApart && isOfWord(lastCharacter) && isOfWord(firstCharacter)) {
      before.text += text;
      before.sum += weight * best[i];
      before.weight += weight;
    } else {
      words.push({ text, sum: weight * best[i], weight });
    }
  });
  const weighted = words.filter(({ text, weight }) => text && weight);
  return weighted.map((word) => ({ ...word, best: word.sum / word.weight }));
}

// A word in a sentence or a table, cut if it is long; its title is the whole word.
export function wordInLine(text) {
  if (text.length <= CHARACTERS_IN_LINE) return html("bdi", {}, text);
  return html("bdi", { title: text }, `${text.slice(0, CHARACTERS_IN_LINE)}…`);
}

// The marked tokens of a side, the darker the more similar. Tab reaches the first one, and arrow keys the others.
function markTokens({ tokens, gaps, best }, name, lowest) {
  const marks = tokens.map((token, i) => {
    const mark = html("mark", { "data-side": name, "data-token": i }, gaps ? token : token.trimStart());
    const share = Math.max(0, (best[i] - lowest) / (1 - lowest));
    mark.style.setProperty("--share", share.toFixed(3));
    return mark;
  });
  return rove(marks);
}

// A line between two marks, in the coordinates of the container.
function lineBetween(mark, match, container) {
  const origin = container.getBoundingClientRect();
  const boxes = [mark, match].map((element) => element.getBoundingClientRect());
  const [upper, lower] = boxes.sort((box, other) => box.top - other.top);
  return svg("line", {
    x1: upper.left + upper.width / 2 - origin.left, y1: upper.bottom - origin.top,
    x2: lower.left + lower.width / 2 - origin.left, y2: lower.top - origin.top,
  });
}

// The match and the numbers of a token in words.
function sayMatch(side, i, name, mark, match) {
  const matched = match ? wordInLine(match.textContent) : "a special token";
  const weight = side.weights ? `, weight ${format(side.weights[i], 3)}` : "";
  const share = `, adds ${format(side.shares[i])} to ${SCORE_OF_SIDE[name]}`;
  return [wordInLine(mark.textContent), " matches ", matched, `: similarity ${format(side.best[i], 3)}${weight}${share}`];
}

// Show the match of the token at which somebody points or which has the focus: with a line, and in words in the output.
function showMatches(alignment, marks, link, container, output) {
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
    const name = mark.dataset.side;
    const i = Number(mark.dataset.token);
    const side = alignment.sides[name];
    // The index of a special token, -1, has no mark.
    const match = marks[OTHER_SIDE[name]][side.matches[i]];
    output.replaceChildren(...sayMatch(side, i, name, mark, match));
    mark.classList.add("on");
    shown = [mark];
    if (!match) return;
    match.classList.add("match");
    shown.push(match);
    link.append(lineBetween(mark, match, container));
  }
  for (const type of ["pointerover", "focusin"]) container.addEventListener(type, show);
  for (const type of ["pointerleave", "focusout"]) container.addEventListener(type, clear);
}

// The text of a side: its marks, and what is between them.
function joinMarks({ tokens, gaps }, marks) {
  const parts = [];
  marks.forEach((mark, i) => {
    if (gaps) parts.push(gaps[i]);
    else if (i > 0 && tokens[i].startsWith(" ")) parts.push(" "); // the text is put together from its tokens
    parts.push(mark);
  });
  if (gaps) parts.push(gaps.at(-1));
  return parts;
}

export const textOfPair = (label, ...parts) =>
  [html("h2", {}, label), html("p", { class: "words", dir: "auto", lang: "" }, ...parts)];

const labelOfReference = (references, i) => (references.length > 1 ? `reference ${i + 1}` : "reference");

// The label of a reference with the scores of the candidate against it, if there are several.
function labelWithScores(references, i, scores) {
  const label = labelOfReference(references, i);
  if (references.length === 1 || !scores) return label;
  return `${label}: P ${format(scores.precision)} R ${format(scores.recall)} F1 ${format(scores.f1)}`;
}

// The text of a side with its marked tokens, and the words that lower its score most.
function drawSide(alignment, label, name, marks) {
  const side = alignment.sides[name];
  if (Math.abs(side.special) >= LEAST_SHOWN)
    label += ` (special tokens add ${format(side.special)} to ${SCORE_OF_SIDE[name]})`;
  return [...textOfPair(label, ...joinMarks(side, marks[name])), ...weakestWords(alignment, name)];
}

// A candidate and its references; with an alignment, the tokens of the candidate and of the aligned reference.
export function drawPair(title, candidate, references, alignment, lowest) {
  const container = html("div", { class: "pair" });
  if (title) container.append(html("h2", {}, title));
  if (!alignment) {
    container.append(...textOfPair("candidate", candidate));
    references.forEach((text, i) => container.append(...textOfPair(labelOfReference(references, i), text)));
    return container;
  }
  const marks = {};
  for (const name of SIDES) marks[name] = markTokens(alignment.sides[name], name, lowest);
  container.append(...drawSide(alignment, "candidate", "candidate", marks));
  references.forEach((text, i) => {
    const label = labelWithScores(references, i, alignment.scores[i]);
    const isAligned = alignment.reference === i;
    container.append(...(isAligned ? drawSide(alignment, label, "reference", marks) : textOfPair(label, text)));
  });
  const output = html("output", { "aria-live": "polite" });
  output.append("Point at a token, or use Tab and the arrow keys, to see its match. ",
    `Shades: similarity ${format(lowest, 2)} to 1.`);
  const hasGaps = SIDES.every((name) => alignment.sides[name].gaps);
  if (!hasGaps) output.append(" This tokenizer has no offsets: the texts are put together from their tokens.");
  const link = svg("svg", { class: "link", "aria-hidden": "true" });
  container.append(output, link);
  showMatches(alignment, marks, link, container, output);
  return container;
}

// The three words that lower a side's score most, as a line.
function weakestWords(alignment, name) {
  const lost = ({ best, weight }) => weight * (1 - best);
  const lowering = wordsOf(alignment, name).filter((word) => lost(word) > LEAST_SHOWN);
  if (!lowering.length) return [];
  const weakest = lowering.sort((word, other) => lost(other) - lost(word)).slice(0, 3);
  const parts = [];
  for (const { text, best } of weakest) {
    if (parts.length) parts.push(" · ");
    parts.push(wordInLine(text), ` ${format(best, 3)}`);
  }
  return [html("p", {}, html("small", {}, `lowers ${SCORE_OF_SIDE[name]} most: `, ...parts))];
}
