// The table of the pairs, which open to their texts, and the buttons that remove a selection.
import { format, html } from "./elements.js";
import { drawPair, lowestSimilarity, textOfPair, wordInLine } from "./tokens.js";
import {
  alignmentOf, candidateOf, count, countPairs, data, groups, hasAlignments, isComparison, isEmpty, ofSide, score, signed,
  truncationOf, unknownTextOf,
} from "./report_data.js";
import {
  BINS, VALUES, difference, edge, opened, redraw, remember, select, selectRows, shownReference, state,
} from "./selection.js";
import { curve } from "./charts.js";

export const ROWS_PER_PAGE = 50;
const CHARACTERS_IN_TABLE = 300;
const scoreColumn = (key, label, side, name = "f1") =>
  ({ key, label, value: (row) => score(state[side], row, name), show: format, wide: key !== "f1" });
// A column's value by which it sorts, how it is shown, and whether only wide windows have it.
export const COLUMNS = [
  { key: "pair", label: "pair", value: (row) => row },
  ...(isComparison ? [
    scoreColumn("a", "F1 A", "a"),
    scoreColumn("b", "F1 B", "b"),
    { key: "difference", label: "B − A", value: difference, show: signed },
  ] : [
    scoreColumn("f1", "F1", "a"),
    scoreColumn("precision", "P", "a", "precision"),
    scoreColumn("recall", "R", "a", "recall"),
  ]),
  ...(data.labels ? [{ key: "group", label: "group", value: (row) => groups.indexOf(data.labels[row]), show: (i) => groups[i], wide: true }] : []),
  { key: "length", label: "length", value: (row) => shownReference(row).length, wide: true },
  { key: "candidate", label: `candidate${ofSide("b")}`, value: (row) => candidateOf(state.b, row), isText: true },
  { key: "reference", label: "reference", value: shownReference, isText: true, wide: true },
];
export const narrow = matchMedia("(max-width: 48rem)");
const lowest = lowestSimilarity(Object.values(data.alignments).flatMap((row) => Object.values(row)));
const columns = () => COLUMNS.filter((column) => !(column.wide && narrow.matches));
let isPrinting = false;
// On paper the table has all rows.
export function setPrinting(isStarting) {
  isPrinting = isStarting;
  redraw(drawTable);
}

// The texts of a system in a pair, with their tokens if these are stored, and what is to be known of them.
function pairOf(system, row) {
  const isKept = data.candidates[system] !== null, alignment = alignmentOf(system, row);
  const hasSeveral = data.references[row].length > 1;
  const numbers = Object.entries({ precision: "P", recall: "R", f1: "F1" }).map(([name, label]) => {
    const number = `${label} ${format(score(system, row, name))}`;
    if (!hasSeveral || !alignment) return number;
    const scores = alignment.scores.map((scores) => scores?.[name] ?? -Infinity);
    return `${number} (reference ${scores.indexOf(Math.max(...scores)) + 1})`;
  }).join("  ");
  const title = isComparison ? `${data.names[system]}: ${numbers}` : numbers;
  const candidate = isKept ? candidateOf(system, row) : "The texts of this validation are not kept.";
  const container = drawPair(title, candidate, data.references[row], alignment, lowest);
  const notes = [];
  if (hasSeveral && !alignment) notes.push("P, R and F1 are each the maximum over the references.");
  for (const fact of [truncationOf(system, row), unknownTextOf(system, row)]) if (fact) notes.push(fact);
  if (isEmpty(system, row)) notes.push(`empty: scored 0${data.bounds.low === -1 ? "" : " before rescaling"}`);
  else if (!alignment && isKept) notes.push("Token matches of these texts are not stored. See them with bertscore_tm.align or bertscore-tm show.");
  container.append(...notes.map((note) => html("p", {}, html("small", {}, note))));
  return container;
}
function detail(row) {
  const pairs = [...new Set([state.a, state.b])].map((system) => pairOf(system, row));
  const source = data.sources ? [html("div", { class: "pair" }, ...textOfPair("source", data.sources[row]))] : [];
  const cell = html("td", { colspan: columns().length }, ...source, html("div", { class: "systems" }, ...pairs));
  if (data.kind === "history") {
    const f1 = data.names.map((_, system) => score(system, row));
    cell.append(html("div", { class: "charts" }, curve("F1 of this pair over the training", f1)));
  }
  return html("tr", { class: "detail" }, cell);
}
export function sortRows(found) {
  const { value, isText } = COLUMNS.find((column) => column.key === state.sort) ?? COLUMNS[0], sign = state.down ? -1 : 1;
  const keys = new Map(found.map((row) => [row, value(row)]));
  const key = (row) => keys.get(row);
  const compare = isText ? (a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0)
    : (a, b) => Number.isNaN(key(a)) - Number.isNaN(key(b)) || sign * (key(a) - key(b)) || a - b;
  return found.sort(compare);
}
export function sortBy(key, focused) {
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
  const isOpen = opened.has(row), id = `pair-${row + 1}`, hasTokens = hasAlignments(row);
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
export function drawTable() {
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
