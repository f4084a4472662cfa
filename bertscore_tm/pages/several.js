// The report of several systems, any two of which are compared, and the differences of all of them.
import { html, rove } from "./elements.js";
import { data, lastSystem, signed } from "./report_data.js";
import { select } from "./selection.js";
import { compareSystems } from "./comparison.js";
import { showReport } from "./report.js";

// Of more than two systems: the difference of each two, of which a click sets A and B.
function drawMatrix(adjusted) {
  if (lastSystem < 2) return;
  const largest = Math.max(...data.differences.flat().map(({ mean }) => Math.abs(mean ?? 0))) || 1;
  const buttons = [];
  const cell = (b, a) => {
    if (a === b) {
      buttons.push(null);
      return html("td");
    }
    const { mean, wins, p } = data.differences[a][b], share = Math.min(1, Math.abs(mean ?? 0) / largest).toFixed(3);
    const onclick = () => { document.getElementById("a").value = a; document.getElementById("b").value = b; select({ a, b }); };
    const label = `${data.names[b]} minus ${data.names[a]}: ${signed(mean)}`;
    buttons.push(html("button", { type: "button", id: `matrix-${b}-${a}`, onclick, "aria-label": label }, signed(mean)));
    return html("td", { class: mean > 0 ? "more" : "less", style: `--share: ${share}` }, buttons.at(-1),
      html("small", {}, `${wins} ${wins === 1 ? "win" : "wins"}`), html("small", {}, p === null ? "" : `p ${p}`));
  };
  document.getElementById("matrix").replaceChildren(html("table", {},
    html("caption", {}, `Difference of F1, row minus column; wins of the row${data.comparisons ? `; p${adjusted}` : ""}`),
    html("thead", {}, html("tr", {}, html("td", {}), ...data.names.map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, ...data.names.map((name, b) =>
      html("tr", {}, html("th", { scope: "row" }, name), ...data.names.map((_, a) => cell(b, a)))))));
  rove(buttons, data.names.length);
}

const adjusted = data.comparisons > 1 ? ` adjusted for all ${data.comparisons} pairs of systems (Holm)` : "";
drawMatrix(adjusted);
compareSystems(adjusted);
showReport();
