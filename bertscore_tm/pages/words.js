// Which words are missed: words of the aligned pairs that are less similar to the other text than most, and often.
import { format, html, rove } from "./elements.js";
import { wordInLine, wordsOf } from "./tokens.js";
import { alignmentOf, count, countPairs, isComparison, shownSides } from "./report_data.js";
import { select, state } from "./selection.js";

const MOST_WORDS = 8;
// The least excess of a word that is listed: smaller ones are rounding.
const LEAST_EXCESS = 0.005;

// What is lost in similarity, and the number of places, in A and in B.
const noLoss = () => ({ a: { lost: 0, places: 0 }, b: { lost: 0, places: 0 } });
const meanLoss = ({ lost, places }) => (places ? lost / places : NaN);
const isInA = (word) => word.a.places > 0;

// The losses of each word of the rows on a side, candidate or reference, and of all words together.
function sumLosses(aligned, name) {
  const words = new Map();
  const all = noLoss();
  for (const row of aligned) {
    for (const side of shownSides) {
      for (const { text, best } of wordsOf(alignmentOf(state[side], row), name)) {
        const key = text.toLowerCase();
        if (!words.has(key)) words.set(key, { text, rows: new Set(), ...noLoss() });
        const word = words.get(key);
        word.rows.add(row);
        for (const sums of [word[side], all[side]]) {
          sums.lost += 1 - best;
          sums.places += 1;
        }
      }
    }
  }
  return { words: [...words.values()], all };
}

// By how much a word loses more than expected. Of one system, a word is compared with the mean loss of all words. Of
// two, its places in B are compared with its mean loss in A, or with that of all words in A if A does not have it. A
// word that B does not have loses nothing in B.
function excessOf(word, all) {
  let expected = meanLoss(all.a);
  if (isComparison && isInA(word)) expected = meanLoss(word.a);
  const { lost, places } = word[shownSides.at(-1)];
  return lost - places * expected;
}

// The words that lose most, without numbers and punctuation.
function findMissed({ words, all }) {
  const missed = words.filter((word) => /\p{L}/u.test(word.text) && excessOf(word, all) > LEAST_EXCESS);
  return missed.sort((word, other) => excessOf(other, all) - excessOf(word, all)).slice(0, MOST_WORDS);
}

// A line of the table of words, with a button that selects the pairs with the word.
function wordLine(word, name) {
  const onclick = () => select({ word: { text: word.text, side: name } }, "chip-word");
  const similarities = shownSides.map((side) => html("td", {}, format(1 - meanLoss(word[side]), 3)));
  return html("tr", {},
    html("td", {}, html("button", { type: "button", onclick }, wordInLine(word.text))),
    ...similarities,
    html("td", {}, String(word.rows.size)));
}

// A table of the missed words of a side, candidate or reference, or null if there are none.
function listWords(aligned, name, title) {
  const missed = findMissed(sumLosses(aligned, name));
  if (!missed.length) return null;
  let caption = title;
  if (isComparison && !missed.every(isInA))
    caption += "; a word that A does not have (–) is compared with the mean of A's words";
  const heads = isComparison ? ["word", "A", "B", "pairs"] : ["word", "similarity", "pairs"];
  return html("table", {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))),
    html("tbody", {}, ...missed.map((word) => wordLine(word, name))));
}

export function drawWords(shown) {
  const place = document.getElementById("words");
  place.replaceChildren();
  if (count < 2) return;
  const aligned = shown.filter((row) => alignmentOf(state.b, row) || alignmentOf(state.a, row));
  const tables = [
    listWords(aligned, "reference", "of the references"),
    listWords(aligned, "candidate", "of the candidates"),
  ].filter(Boolean);
  if (!tables.length) return;
  rove(tables.flatMap((table) => [...table.querySelectorAll("button")]), 1);
  const where = isComparison ? ", where B loses to A" : "";
  place.append(
    html("h2", {}, `Words most missed${where}, in ${countPairs(aligned.length)} with tokens`),
    html("div", { class: "scroll" }, ...tables));
}
