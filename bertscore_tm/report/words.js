// Which words are missed: over the aligned pairs, those of the references and of the candidates with the lowest similarity.
const MOST_WORDS = 8;

// Whether a word occurs on a side, candidate or reference, of the pairs of A or B, of those with tokens.
const hasWord = ({ text, side }) => (row) => [state.a, state.b].some((system) =>
  wordsOf(data.alignments[row]?.[system], side).some((word) => word.text.toLowerCase() === text.toLowerCase()));
function drawWords(shown) {
  const aligned = shown.filter((row) => data.alignments[row]?.[state.b] || data.alignments[row]?.[state.a]);
  const place = document.getElementById("words");
  if (!aligned.length || count === 1) return place.replaceChildren();
  const list = (s, title) => {
    const words = new Map();
    for (const row of aligned)
      for (const side of isSingle ? ["b"] : ["a", "b"])
        for (const { text, best, weight } of wordsOf(data.alignments[row]?.[state[side]], s)) {
          const key = text.toLowerCase();
          if (!words.has(key)) words.set(key, { text, rows: new Set(), a: [0, 0], b: [0, 0] });
          const word = words.get(key);
          word.rows.add(row);
          word[side][0] += weight * best;
          word[side][1] += weight;
        }
    const mean = ([sum, weight]) => (weight ? sum / weight : NaN);
    // What B loses to A, or what one system loses.
    const lost = ({ a, b }) => b[1] - b[0] - (a[1] - a[0]);
    const first = [...words.values()].filter((word) => lost(word) > 0.005).sort((p, q) => lost(q) - lost(p)).slice(0, MOST_WORDS);
    const button = (word) => html("button", { type: "button", onclick: () => select({ word: { text: word.text, side: s } }) }, html("bdi", {}, word.text));
    const cells = (word) => [html("td", {}, button(word)), ...(isSingle ? ["b"] : ["a", "b"]).map((side) =>
      html("td", {}, format(mean(word[side]), 3))), html("td", {}, String(word.rows.size))];
    const heads = ["word", ...(isSingle ? ["similarity"] : ["A", "B"]), "pairs"];
    return html("table", {}, html("caption", {}, title), html("thead", {}, html("tr", {}, ...heads.map((head) =>
      html("th", { scope: "col" }, head)))), html("tbody", {}, ...first.map((word) => html("tr", {}, ...cells(word)))));
  };
  const than = isSingle ? "" : ", where B loses to A";
  place.replaceChildren(html("h2", {}, `Words most missed${than}, in ${aligned.length} pairs with tokens`),
    html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Words most missed" },
      list(1, "of the references"), list(0, "of the candidates")));
}
