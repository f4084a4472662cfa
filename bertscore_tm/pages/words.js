// Which words are missed: words of the aligned pairs that are less similar to the other text than most, and often.
import { format, html, rove } from "./elements.js";
import { wordInLine, wordsOf } from "./tokens.js";
import { alignmentOf, count, countPairs, isComparison, shownSides } from "./report_data.js";
import { select, state } from "./selection.js";

const MOST_WORDS = 8;

// What is lost in similarity, and the number of places, in A and in B.
const noLoss = () => ({ a: { lost: 0, places: 0 }, b: { lost: 0, places: 0 } });
// A table of the words of a side, candidate or reference, or none.
function listWords(aligned, name, title) {
  const words = new Map(), all = noLoss();
  for (const row of aligned)
    for (const side of shownSides)
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
  const mean = ({ lost, places }) => (places ? lost / places : NaN);
  // Of one system, a word is compared with the mean loss of all words. Of two, its places in B are compared with its mean
  // loss in A, or with that of all words in A if A does not have it. A word that B does not have loses nothing in B.
  const isInA = (word) => word.a.places > 0;
  const expected = (word) => {
    if (isComparison && isInA(word)) return mean(word.a);
    return mean(all.a);
  };
  const excess = (word) => {
    const { lost, places } = word[shownSides.at(-1)];
    return lost - places * expected(word);
  };
  const first = [...words.values()].filter((word) => /\p{L}/u.test(word.text) && excess(word) > 0.005)
    .sort((p, q) => excess(q) - excess(p)).slice(0, MOST_WORDS);
  const hasNewWord = isComparison && !first.every(isInA);
  const caption = hasNewWord ? `${title}; a word that A does not have (–) is compared with the mean of A's words` : title;
  const button = ({ text }) => html("button", { type: "button", onclick: () => select({ word: { text, side: name } }, "chip-word") }, wordInLine(text));
  const heads = isComparison ? ["A", "B"] : ["similarity"];
  const lines = first.map((word) => html("tr", {}, html("td", {}, button(word)), ...shownSides.map((side) =>
    html("td", {}, format(1 - mean(word[side]), 3))), html("td", {}, String(word.rows.size))));
  return lines.length ? [html("table", {}, html("caption", {}, caption), html("thead", {}, html("tr", {},
    ...["word", ...heads, "pairs"].map((head) => html("th", { scope: "col" }, head)))), html("tbody", {}, ...lines))] : [];
}
export function drawWords(shown) {
  const aligned = shown.filter((row) => alignmentOf(state.b, row) || alignmentOf(state.a, row));
  const tables = [];
  if (count > 1) {
    tables.push(...listWords(aligned, "reference", "of the references"));
    tables.push(...listWords(aligned, "candidate", "of the candidates"));
  }
  rove(tables.flatMap((table) => [...table.querySelectorAll("button")]), 1);
  const where = isComparison ? ", where B loses to A" : "";
  document.getElementById("words").replaceChildren(...(tables.length ? [
    html("h2", {}, `Words most missed${where}, in ${countPairs(aligned.length)} with tokens`),
    html("div", { class: "scroll" }, ...tables)] : []));
}
