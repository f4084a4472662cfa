// The table of pairs, which open to their texts, and the controls.
const ROWS_PER_PAGE = 50, CHARACTERS_IN_TABLE = 300;
const COLUMNS = [
  { key: "pair", label: "pair", value: (row) => row },
  ...KIND.columns,
  ...(data.labels ? [{ key: "group", label: "group", value: (row) => groups.indexOf(data.labels[row]), show: (i) => groups[i], wide: true }] : []),
  { key: "length", label: "length", value: (row) => reference(row).length, wide: true },
  { key: "candidate", label: `candidate${KIND.of("b")}`, value: (row) => textOf(state.b, row), isText: true },
  { key: "reference", label: "reference", value: reference, isText: true, wide: true },
];
const narrow = matchMedia("(max-width: 48rem)");
const columns = () => COLUMNS.filter((column) => !(column.wide && narrow.matches));
let isPrinting = false;

// Draw again, and focus the control that has this id, because drawing replaces the one that was used.
function redraw(draw, focused = document.activeElement.id) {
  // Only a keyboard's user sees the focus, so that a click does not scroll.
  const preventScroll = !document.activeElement.matches(":focus-visible");
  draw();
  if (focused) (document.getElementById(focused) ?? document.getElementById("filter")).focus({ preventScroll });
}
// Change what is shown, and draw all that depends on it.
function select(changes, focused) {
  Object.assign(state, { page: 0 }, changes);
  const shown = selectRows();
  redraw(() => {
    drawCharts(shown);
    drawWords(shown);
    drawTable();
  }, focused);
}
function pairOf(system, row) {
  const isKept = data.candidates[system] !== null, alignment = data.alignments[row]?.[system];
  const several = data.references[row].length > 1;
  const best = (i) => {
    const of = alignment?.scores.map((one) => one?.[i] ?? -Infinity);
    return several && of ? ` (reference ${of.indexOf(Math.max(...of)) + 1})` : "";
  };
  const numbers = ["P", "R", "F1"].map((label, i) => `${label} ${format(score(system, row, i))}${best(i)}`).join("  ");
  const candidate = isKept ? textOf(system, row) : "The texts of this validation are not kept.";
  const container = drawPair(KIND.name(system, numbers), candidate, data.references[row], alignment, lowest);
  const notes = [];
  if (several && !alignment) notes.push("P, R and F1 are each the maximum over the references.");
  for (const fact of [isCut, isUnknown]) if (fact(system, row)) notes.push(fact(system, row));
  if (emptyRows[system].has(row)) notes.push(`empty: scored 0${data.bounds[0] === -1 ? "" : " before rescaling"}`);
  else if (!alignment && isKept) notes.push("Token matches of these texts are not stored. See them with bertscore_tm.align or bertscore-tm show.");
  container.append(...notes.map((note) => html("p", {}, html("small", {}, note))));
  return container;
}
function detail(row) {
  const pairs = [...new Set([state.a, state.b])].map((system) => pairOf(system, row));
  const source = data.sources ? [html("div", { class: "pair" }, ...textOfPair("source", data.sources[row]))] : [];
  const cell = html("td", { colspan: columns().length }, ...source, html("div", { class: "systems" }, ...pairs), ...KIND.course(row));
  return html("tr", { class: "detail" }, cell);
}
function sortRows(found) {
  const { value, isText } = COLUMNS.find((column) => column.key === state.sort) ?? COLUMNS[0], sign = state.down ? -1 : 1;
  const keys = new Map(found.map((row) => [row, value(row)]));
  const key = (row) => keys.get(row);
  const compare = isText ? (a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0)
    : (a, b) => Number.isNaN(key(a)) - Number.isNaN(key(b)) || sign * (key(a) - key(b)) || a - b;
  return found.sort(compare);
}
function sortBy(key, focused) {
  Object.assign(state, { down: state.sort === key && !state.down, sort: key, page: 0 });
  redraw(drawTable, focused);
}
function heading(column) {
  const isSorted = state.sort === column.key, arrow = isSorted ? (state.down ? " ▼" : " ▲") : "";
  const id = `sort-${column.key}`, order = isSorted ? (state.down ? "descending" : "ascending") : "none";
  return html("th", { scope: "col", class: classOf(column), "aria-sort": order },
    html("button", { type: "button", id, onclick: () => sortBy(column.key, id) }, column.label + arrow));
}
const classOf = (column) => column.isText && "text";
const shorten = (text) => (text.length > CHARACTERS_IN_TABLE ? `${text.slice(0, CHARACTERS_IN_TABLE)}…` : text);
function line(row) {
  const isOpen = opened.has(row), id = `pair-${row + 1}`, hasTokens = row in data.alignments;
  const toggle = () => {
    // A click that ends a selection of text opens nothing.
    if (String(getSelection())) return;
    if (!opened.delete(row)) opened.add(row);
    redraw(drawTable, id);
  };
  const cells = columns().slice(1).map(({ value, isText, show = isText ? shorten : String }) =>
    html("td", { class: classOf({ isText }), dir: isText && "auto" }, show(value(row))));
  const named = { "aria-expanded": String(isOpen), "aria-label": `pair ${row + 1}${hasTokens ? ", with tokens" : ""}` };
  const button = html("button", { type: "button", id, class: hasTokens && "tokens", ...named }, String(row + 1));
  return html("tr", { class: "row", onclick: toggle }, html("td", {}, button), ...cells);
}
function drawTable() {
  const found = sortRows(selectRows()), size = isPrinting ? Infinity : ROWS_PER_PAGE;
  const pages = Math.max(1, Math.ceil(found.length / size));
  state.page = isPrinting ? 0 : Math.min(state.page, pages - 1);
  const shown = isPrinting ? found : found.slice(state.page * size, (state.page + 1) * size);
  const place = document.getElementById("pairs");
  const turn = (id, label, step) => {
    const isEnd = state.page + step < 0 || state.page + step >= pages;
    const onclick = () => {
      if (isEnd) return;
      state.page += step;
      redraw(drawTable, id);
      place.scrollIntoView();
    };
    // It is not disabled because a disabled button loses the focus.
    return html("button", { type: "button", id, "aria-disabled": String(isEnd), onclick }, label);
  };
  const hint = Object.keys(data.alignments).length ? "; a bold number opens to tokens" : "";
  const caption = `${found.length} of ${countPairs(count)}, page ${state.page + 1} of ${pages}${hint}`;
  place.replaceChildren(
    html("table", { class: "pairs" }, html("caption", { "aria-live": "polite" }, caption),
      ...(shown.length ? [html("thead", {}, html("tr", {}, ...columns().map(heading)))] : []),
      html("tbody", {}, ...shown.flatMap((row) => (opened.has(row) ? [line(row), detail(row)] : [line(row)])))),
    html("p", { class: "pager", hidden: pages === 1 },
      turn("previous", "Previous", -1), " ", turn("next", "Next", 1)));
  drawChips();
  remember();
}
// What a chart or a word has selected, to be removed by a click.
function drawChips() {
  const { bucket, word } = state, chips = [];
  const chip = (id, change, ...content) =>
    html("button", { type: "button", class: "chip", id, onclick: () => select(change, "filter") }, ...content, " ✕");
  if (bucket) {
    const { key, limits, bin } = bucket, to = bin === BINS - 1 ? "or more" : `to ${edge(key, bin + 1, limits)}`;
    chips.push(chip("chip-range", { bucket: null }, `${VALUES[key][0]} ${edge(key, bin, limits)} ${to}`));
  }
  if (word) chips.push(chip("chip-word", { word: null }, "“", wordInLine(word.text), "”"));
  document.getElementById("chips").replaceChildren(...chips);
}
function controls() {
  const form = document.getElementById("controls");
  const choose = (id, label, options, chosen, act) => html("label", {}, `${label} `,
    html("select", { id, onchange: (event) => act(event.target.value) },
      ...options.map(([value, text]) => html("option", { value, selected: value === chosen }, text))));
  form.replaceChildren(...KIND.selects.map((side) => choose(side, side.toUpperCase(),
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

document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
KIND.start();
showAddress();
// The page itself replaces its address, which is no hashchange.
addEventListener("hashchange", showAddress);
if (narrow.matches) document.getElementById("overview").open = false;
narrow.addEventListener("change", () => redraw(drawTable));
for (const [name, value] of [["beforeprint", true], ["afterprint", false]])
  addEventListener(name, () => { isPrinting = value; redraw(drawTable); });
// The address is that of the view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("#pairs .row button")?.focus();
});
document.body.dataset.ready = "true";
