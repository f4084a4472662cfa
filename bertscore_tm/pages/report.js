// What all reports show of their pairs: charts, the mean of those shown, missed words, controls and the table.
// The script of a kind of report adds its own parts, and then calls showReport.
import { format, html } from "./elements.js";
import { count, countPairs, data, finite, isComparison, meanOf, shownSides } from "./report_data.js";
import { FILTERS, VALUES, isFiltered, recall, redraw, select, selectRows, state, whenSelected } from "./selection.js";
import { histogram } from "./charts.js";
import { drawWords } from "./words.js";
import { COLUMNS, ROWS_PER_PAGE, drawTable, narrow, setPrinting, sortBy, sortRows } from "./table.js";

// What a title says of the rows that are selected.
export function describeShown(shown) {
  if (!isFiltered()) return "";
  return ` of the ${countPairs(shown.length)} shown`;
}

function drawCharts(shown) {
  if (count < 2) return;
  const ofShown = describeShown(shown);
  const systems = shownSides.map((side) => ({ key: side, name: data.names[state[side]], style: side }));
  const lengths = [{ key: "length", name: "references", style: "a" }];
  document.getElementById("charts").replaceChildren(
    histogram(`Distribution of F1${ofShown}`, "F1", systems, shown),
    histogram(`Length of the reference${ofShown}`, VALUES.length[0], lengths, shown));
}

// The mean F1 of the shown pairs. The overview has the means of all pairs.
function sayMeans(shown) {
  const place = document.getElementById("found");
  place.replaceChildren();
  if (count < 2 || !isFiltered()) return;
  const means = [];
  for (const side of shownSides) {
    const { mean, low, high } = meanOf(finite(shown.map(VALUES[side][1])), data.bounds);
    const interval = low === null ? "" : ` (${format(low)} to ${format(high)})`;
    if (means.length) means.push("; ");
    means.push(html("bdi", {}, data.names[state[side]]), ` ${format(mean)}${interval}`);
  }
  place.append(html("p", { id: "filtered" }, `Mean F1${describeShown(shown)}: `, ...means));
}

// A labelled choice of options, pairs of a value and its text. The function act gets the chosen value.
function choice(id, label, options, chosen, act) {
  const elements = options.map(([value, text]) => html("option", { value, selected: value === chosen }, text));
  return html("label", {}, `${label} `, html("select", { id, onchange: (event) => act(event.target.value) }, ...elements));
}

function searchInput() {
  const label = "search in texts";
  let timer = 0;
  const oninput = (event) => {
    // Search after a pause, because searching thousands of pairs at each key would be slow.
    clearTimeout(timer);
    timer = setTimeout((query) => select({ query }), 150, event.target.value);
  };
  return html("input", { id: "search", type: "search", value: state.query, placeholder: label, "aria-label": label, oninput });
}

function drawControls() {
  const form = document.getElementById("controls");
  form.replaceChildren();
  if (isComparison) {
    const systems = data.names.map((name, i) => [i, i === data.best ? `${name} (best)` : name]);
    for (const side of ["a", "b"])
      form.append(choice(side, side.toUpperCase(), systems, state[side], (system) => select({ [side]: Number(system) })));
  }
  const filters = Object.entries(FILTERS).map(([key, [label]]) => [key, label]);
  const columns = COLUMNS.map(({ key, label }) => [key, label]);
  form.append(
    choice("filter", "show", filters, state.filter, (filter) => select({ filter })),
    choice("order", "sort by", columns, state.sort, (key) => sortBy(key)),
    searchInput(),
    html("span", { id: "chips" }));
  form.hidden = count === 1;
}

// Show what the address says, also of one that is pasted into the open page and of Back and Forward.
function showAddress() {
  const asked = recall();
  redraw(drawControls);
  if (asked && !state.page) {
    // An address with a pair and no page shows the page of the table that has the pair.
    const place = sortRows(selectRows()).indexOf(asked - 1);
    state.page = Math.floor(Math.max(0, place) / ROWS_PER_PAGE);
  }
  select({ page: state.page });
  if (asked) document.getElementById(`pair-${asked}`)?.scrollIntoView();
}

export function showReport() {
  // Enter in the search would load the page anew.
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  showAddress();
  // The page itself replaces its address, which is no hashchange.
  addEventListener("hashchange", showAddress);
  if (narrow.matches) document.getElementById("overview").open = false;
  narrow.addEventListener("change", () => redraw(drawTable));
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
  document.querySelector(".skip").addEventListener("click", (event) => {
    // The link would replace the address, which holds the view.
    event.preventDefault();
    document.querySelector("#pairs .row button")?.focus();
  });
  document.body.dataset.ready = "true";
}

for (const draw of [drawCharts, sayMeans, drawWords, drawTable]) whenSelected(draw);
