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
    const series = [{ key: "difference", name: "B − A", style: "a" }];
    document.getElementById("charts").append(histogram(`Difference of F1, B − A${describeShown(shown)}`, "B − A", series, shown));
    document.getElementById("found").prepend(html("p", { id: "difference" }, ...sayDifference(shown, adjusted)));
  });
}
function sayDifference(shown, adjusted) {
  const better = (sign) => shown.filter((row) => sign * gain(row) > 0).length;
  let { mean, low, high, wins, p } = data.differences[state.a][state.b];
  let losses = data.differences[state.b][state.a].wins;
  if (isFiltered()) {
    // The data have the numbers of all pairs.
    ({ mean, low, high } = meanOf(finite(shown.map(difference)), data.gainBounds));
    wins = better(1);
    losses = better(-1);
    p = null;
  }
  const ends = low === null ? "" : ` (95% interval ${signed(low)} to ${signed(high)})`;
  const ofShown = describeShown(shown);
  return [html("bdi", {}, data.names[state.b]), " minus ", html("bdi", {}, data.names[state.a]),
    ": mean difference of F1 ", html("strong", {}, signed(mean)), ends,
    p === null ? "" : `, p ${p}${adjusted}`,
    `, better in ${countPairs(wins)}, worse in ${losses}${ofShown && `,${ofShown}`}`];
}
