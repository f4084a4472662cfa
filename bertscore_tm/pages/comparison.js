// What a report adds to compare two systems, A and B, pair by pair: the distribution and the mean of their difference.
import { html } from "./elements.js";
import { count, countPairs, data, finite, meanOf, signed } from "./report_data.js";
import { difference, gain, isFiltered, state, whenSelected } from "./selection.js";
import { histogram } from "./charts.js";
import { describeShown } from "./report.js";

// The text of p-values ends with "adjusted".
export function compareSystems(adjusted) {
  whenSelected((shown) => {
    if (count < 2) return;
    const title = `Difference of F1, B − A${describeShown(shown)}`;
    const series = [{ key: "difference", name: "B − A", style: "a" }];
    document.getElementById("charts").append(histogram(title, "B − A", series, shown));
    document.getElementById("found").prepend(html("p", { id: "difference" }, ...sayDifference(shown, adjusted)));
  });
}

// Mean difference of the shown pairs with its interval, wins and losses of B, and the p-value if there is one.
function measureDifference(shown) {
  if (!isFiltered()) {
    // The page has the numbers of all pairs, with a test.
    const { wins: losses } = data.differences[state.b][state.a];
    return { ...data.differences[state.a][state.b], losses };
  }
  const wins = shown.filter((row) => gain(row) > 0).length;
  const losses = shown.filter((row) => gain(row) < 0).length;
  // There is no test of pairs that a filter selects, because a filter may select them by their scores.
  return { ...meanOf(finite(shown.map(difference)), data.gainBounds), wins, losses, p: null };
}

function sayDifference(shown, adjusted) {
  const { mean, low, high, wins, losses, p } = measureDifference(shown);
  const interval = low === null ? "" : ` (95% interval ${signed(low)} to ${signed(high)})`;
  const pValue = p === null ? "" : `, p ${p}${adjusted}`;
  let better = `, better in ${countPairs(wins)}, worse in ${losses}`;
  if (isFiltered()) better += `,${describeShown(shown)}`;
  return [html("bdi", {}, data.names[state.b]), " minus ", html("bdi", {}, data.names[state.a]),
    ": mean difference of F1 ", html("strong", {}, signed(mean)), interval, pValue, better];
}
