// The report of several systems, any two of which are compared, and the differences of all of them.
import { html, rove } from "./elements.js";
import { data, lastSystem, signed } from "./report_data.js";
import { select } from "./selection.js";
import { compareSystems } from "./comparison.js";
import { showReport } from "./report.js";

// A button with the mean difference of two systems, which sets A and B.
function differenceButton(a, b) {
  const mean = signed(data.differences[a][b].mean);
  const label = `${data.names[b]} minus ${data.names[a]}: ${mean}`;
  const onclick = () => {
    document.getElementById("a").value = a;
    document.getElementById("b").value = b;
    select({ a, b });
  };
  return html("button", { type: "button", id: `matrix-${b}-${a}`, onclick, "aria-label": label }, mean);
}

// A table of the differences of each two systems, if there are more than two.
function drawMatrix(adjusted) {
  if (lastSystem < 2) return;
  const sizes = data.differences.flat().map(({ mean }) => Math.abs(mean ?? 0));
  const largest = Math.max(...sizes) || 1; // not 0, by which the shades are divided
  const buttons = [];
  const cell = (b, a) => {
    if (a === b) {
      buttons.push(null); // a gap for the arrow keys
      return html("td");
    }
    const { mean, wins, p } = data.differences[a][b];
    const share = Math.min(1, Math.abs(mean ?? 0) / largest).toFixed(3);
    const button = differenceButton(a, b);
    buttons.push(button);
    return html("td", { class: mean > 0 ? "more" : "less", style: `--share: ${share}` }, button,
      html("small", {}, `${wins} ${wins === 1 ? "win" : "wins"}`),
      html("small", {}, p === null ? "" : `p ${p}`));
  };
  const heads = data.names.map((name) => html("th", { scope: "col" }, name));
  const lines = data.names.map((name, b) =>
    html("tr", {}, html("th", { scope: "row" }, name), ...data.names.map((_, a) => cell(b, a))));
  let caption = "Difference of F1, row minus column; wins of the row";
  if (data.comparisons) caption += `; p${adjusted}`;
  document.getElementById("matrix").replaceChildren(html("table", {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, html("td", {}), ...heads)),
    html("tbody", {}, ...lines)));
  rove(buttons, data.names.length);
}

let adjusted = "";
if (data.comparisons > 1) adjusted = ` adjusted for all ${data.comparisons} pairs of systems (Holm)`;
drawMatrix(adjusted);
compareSystems(adjusted);
showReport();
