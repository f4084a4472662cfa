// What all reports show of their pairs: charts, the mean of those shown, missed words, controls and the table.
// The script of a kind of report adds its own parts, and then calls showReport.
import { format, html } from "./elements.js";
import { count, countPairs, data, finite, isComparison, meanOf, shownSides } from "./report_data.js";
import { FILTERS, VALUES, isFiltered, recall, redraw, select, selectRows, state, whenSelected } from "./selection.js";
import { histogram } from "./charts.js";
import { drawWords } from "./words.js";
import { COLUMNS, ROWS_PER_PAGE, drawTable, narrow, setPrinting, sortBy, sortRows } from "./table.js";

// What a title says of the rows that are selected.
export const describeShown = (shown) => (isFiltered() ? ` of the ${countPairs(shown.length)} shown` : "");
const interval = (low, high) => (low === null ? "" : ` (${format(low)} to ${format(high)})`);

function drawCharts(shown) {
  if (count < 2) return;
  const ofShown = describeShown(shown);
  const series = shownSides.map((side) => ({ key: side, name: data.names[state[side]], style: side }));
  const lengths = [{ key: "length", name: "references", style: "a" }];
  document.getElementById("charts").replaceChildren(
    histogram(`Distribution of F1${ofShown}`, "F1", series, shown),
    histogram(`Length of the reference${ofShown}`, VALUES.length[0], lengths, shown));
}
function sayMeans(shown) {
  const place = document.getElementById("found");
  place.replaceChildren();
  if (count < 2 || !isFiltered()) return;
  const means = shownSides.flatMap((side, i) => {
    const { mean, low, high } = meanOf(finite(shown.map(VALUES[side][1])), data.bounds);
    return [i ? "; " : "", html("bdi", {}, data.names[state[side]]), ` ${format(mean)}${interval(low, high)}`];
  });
  place.append(html("p", { id: "filtered" }, `Mean F1${describeShown(shown)}: `, ...means));
}
function controls() {
  const form = document.getElementById("controls");
  const choose = (id, label, options, chosen, act) => html("label", {}, `${label} `,
    html("select", { id, onchange: (event) => act(event.target.value) },
      ...options.map(([value, text]) => html("option", { value, selected: value === chosen }, text))));
  const systemSelects = isComparison ? ["a", "b"] : [];
  form.replaceChildren(...systemSelects.map((side) => choose(side, side.toUpperCase(),
    data.names.map((name, i) => [i, i === data.best ? `${name} (best)` : name]), state[side],
    (value) => select({ [side]: Number(value) }))));
  form.append(choose("filter", "show", Object.entries(FILTERS).map(([key, [text]]) => [key, text]), state.filter,
    (filter) => select({ filter })));
  form.append(choose("order", "sort by", COLUMNS.map(({ key, label }) => [key, label]), state.sort, (key) => sortBy(key)));
  let timer = 0;
  const oninput = (event) => { clearTimeout(timer); timer = setTimeout((query) => select({ query }), 150, event.target.value); };
  const label = "search in texts";
  form.append(html("input", { id: "search", type: "search", value: state.query, placeholder: label, "aria-label": label, oninput }),
    html("span", { id: "chips" }));
  form.hidden = count === 1;
}

// Show what the address says, also of one that is pasted into the open page and of Back and Forward.
function showAddress() {
  const asked = recall();
  redraw(controls);
  if (asked && !state.page) state.page = Math.floor(Math.max(0, sortRows(selectRows()).indexOf(asked - 1)) / ROWS_PER_PAGE);
  select({ page: state.page });
  if (asked) document.getElementById(`pair-${asked}`)?.scrollIntoView();
}

export function showReport() {
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  showAddress();
  // The page itself replaces its address, which is no hashchange.
  addEventListener("hashchange", showAddress);
  if (narrow.matches) document.getElementById("overview").open = false;
  narrow.addEventListener("change", () => redraw(drawTable));
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
  // The address is that of the view.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.querySelector("#pairs .row button")?.focus();
  });
  document.body.dataset.ready = "true";
}

for (const draw of [drawCharts, sayMeans, drawWords, drawTable]) whenSelected(draw);
