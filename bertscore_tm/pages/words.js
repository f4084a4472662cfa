// Which words are missed: of the aligned pairs' references and candidates, those that are less similar than most, and often.
const MOST_WORDS = 8;

// Whether a word occurs on a side, candidate or reference, of the pairs of A or B, of those with tokens.
const hasWord = ({ text, side }) => (row) => [state.a, state.b].some((system) =>
  wordsOf(data.alignments[row]?.[system], side).some((word) => word.text.toLowerCase() === text.toLowerCase()));
function listWords(aligned, s, title) {
  // The sum of what is lost in similarity, and the number of places, of each word and of all words.
  const words = new Map(), all = { a: [0, 0], b: [0, 0] };
  for (const row of aligned)
    for (const side of KIND.sides)
      for (const { text, best } of wordsOf(data.alignments[row]?.[state[side]], s)) {
        const key = text.toLowerCase();
        if (!words.has(key)) words.set(key, { text, rows: new Set(), a: [0, 0], b: [0, 0] });
        const word = words.get(key);
        word.rows.add(row);
        for (const sums of [word[side], all[side]]) {
          sums[0] += 1 - best;
          sums[1] += 1;
        }
      }
  const mean = ([lost, times]) => (times ? lost / times : NaN);
  // Of one system, a word is compared with the mean loss of all words. Of two, its places in B are compared with its mean
  // loss in A, or with that of all words in A if A does not have it. A word that B does not have loses nothing in B.
  const isComparison = KIND.sides.length > 1, isInA = (word) => word.a[1] > 0;
  const expected = (word) => {
    if (isComparison && isInA(word)) return mean(word.a);
    return mean(all.a);
  };
  const excess = (word) => {
    const [lost, times] = word[KIND.sides.at(-1)];
    return lost - times * expected(word);
  };
  const first = [...words.values()].filter((word) => /\p{L}/u.test(word.text) && excess(word) > 0.005)
    .sort((p, q) => excess(q) - excess(p)).slice(0, MOST_WORDS);
  const hasNewWord = isComparison && !first.every(isInA);
  const caption = hasNewWord ? `${title}; a word that A does not have (–) is compared with the mean of A's words` : title;
  const button = ({ text }) => html("button", { type: "button", onclick: () => select({ word: { text, side: s } }, "chip-word") }, wordInLine(text));
  const lines = first.map((word) => html("tr", {}, html("td", {}, button(word)), ...KIND.sides.map((side) =>
    html("td", {}, format(1 - mean(word[side]), 3))), html("td", {}, String(word.rows.size))));
  return lines.length ? [html("table", {}, html("caption", {}, caption), html("thead", {}, html("tr", {},
    ...["word", ...KIND.heads, "pairs"].map((head) => html("th", { scope: "col" }, head)))), html("tbody", {}, ...lines))] : [];
}
function drawWords(shown) {
  const aligned = shown.filter((row) => data.alignments[row]?.[state.b] || data.alignments[row]?.[state.a]);
  const tables = count === 1 ? [] : [...listWords(aligned, 1, "of the references"), ...listWords(aligned, 0, "of the candidates")];
  rove(tables.flatMap((table) => [...table.querySelectorAll("button")]), 1);
  document.getElementById("words").replaceChildren(...(tables.length ? [
    html("h2", {}, `Words most missed${KIND.where}, in ${countPairs(aligned.length)} with tokens`),
    html("div", { class: "scroll" }, ...tables)] : []));
}
