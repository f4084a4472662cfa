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
export const COLUMNS = [{ key: "pair", label: "pair", value: (row) => row }];
if (isComparison) {
  COLUMNS.push(
    scoreColumn("a", "F1 A", "a"),
    scoreColumn("b", "F1 B", "b"),
    { key: "difference", label: "B − A", value: difference, show: signed });
} else {
  COLUMNS.push(
    scoreColumn("f1", "F1", "a"),
    scoreColumn("precision", "P", "a", "precision"),
    scoreColumn("recall", "R", "a", "recall"));
}
if (data.labels)
  COLUMNS.push({ key: "group", label: "group", value: (row) => groups.indexOf(data.labels[row]), show: (i) => groups[i], wide: true });
COLUMNS.push(
  { key: "length", label: "length", value: (row) => shownReference(row).length, wide: true },
  { key: "candidate", label: `candidate${ofSide("b")}`, value: (row) => candidateOf(state.b, row), isText: true },
  { key: "reference", label: "reference", value: shownReference, isText: true, wide: true });

export const narrow = matchMedia("(max-width: 48rem)");
const columns = () => COLUMNS.filter((column) => !(column.wide && narrow.matches));
// All pairs of a page have the same shades, so that they can be compared.
const lowest = lowestSimilarity(Object.values(data.alignments).flatMap((bySystem) => Object.values(bySystem)));

let isPrinting = false;
// On paper the table has all rows.
export function setPrinting(isStarting) {
  isPrinting = isStarting;
  redraw(drawTable);
}

// P, R and F1 of a system in a pair. Each is the maximum over the references, so each may be that of another one.
function sayScores(system, row) {
  const alignment = alignmentOf(system, row);
  const numbers = [];
  for (const [name, label] of [["precision", "P"], ["recall", "R"], ["f1", "F1"]]) {
    let number = `${label} ${format(score(system, row, name))}`;
    if (alignment && data.references[row].length > 1) {
      const scores = alignment.scores.map((one) => one?.[name] ?? -Infinity);
      number += ` (reference ${scores.indexOf(Math.max(...scores)) + 1})`;
    }
    numbers.push(number);
  }
  return numbers.join("  ");
}

// What a reader has to know about a system's texts in a pair, as sentences.
function notesOf(system, row) {
  const isKept = data.candidates[system] !== null;
  const isAligned = alignmentOf(system, row) !== undefined;
  const notes = [];
  if (data.references[row].length > 1 && !isAligned) notes.push("P, R and F1 are each the maximum over the references.");
  for (const fact of [truncationOf(system, row), unknownTextOf(system, row)]) if (fact) notes.push(fact);
  if (isEmpty(system, row)) {
    const isRescaled = data.bounds.low !== -1;
    notes.push(`empty: scored 0${isRescaled ? " before rescaling" : ""}`);
  } else if (!isAligned && isKept) {
    notes.push("Token matches of these texts are not stored. See them with bertscore_tm.align or bertscore-tm show.");
  }
  return notes;
}

// The texts of a system in a pair, with their tokens if these are stored, and notes about them.
function pairOf(system, row) {
  const isKept = data.candidates[system] !== null;
  let title = sayScores(system, row);
  if (isComparison) title = `${data.names[system]}: ${title}`;
  const candidate = isKept ? candidateOf(system, row) : "The texts of this validation are not kept.";
  const container = drawPair(title, candidate, data.references[row], alignmentOf(system, row), lowest);
  for (const note of notesOf(system, row)) container.append(html("p", {}, html("small", {}, note)));
  return container;
}

// The row below an opened pair: its source, its texts and, in a history, the course of its F1.
function detail(row) {
  const cell = html("td", { colspan: columns().length });
  if (data.sources) cell.append(html("div", { class: "pair" }, ...textOfPair("source", data.sources[row])));
  // A system that is compared with itself is shown once.
  const systems = [...new Set([state.a, state.b])];
  cell.append(html("div", { class: "systems" }, ...systems.map((system) => pairOf(system, row))));
  if (data.kind === "history") {
    const f1 = data.names.map((_, system) => score(system, row));
    cell.append(html("div", { class: "charts" }, curve("F1 of this pair over the training", f1)));
  }
  return html("tr", { class: "detail" }, cell);
}

function compareTexts(a, b) {
  if (a < b) return -1;
  return a > b ? 1 : 0;
}

export function sortRows(found) {
  const { value, isText } = COLUMNS.find((column) => column.key === state.sort) ?? COLUMNS[0];
  const sign = state.down ? -1 : 1;
  // The values are computed once per row, and not at each comparison.
  const values = new Map(found.map((row) => [row, value(row)]));
  return found.sort((row, other) => {
    const a = values.get(row);
    const b = values.get(other);
    if (isText) return sign * compareTexts(a, b);
    // Rows without a score come last in both directions, and rows of equal scores stay in order.
    return Number.isNaN(a) - Number.isNaN(b) || sign * (a - b) || row - other;
  });
}
export function sortBy(key, focused) {
  state.down = state.sort === key && !state.down;
  state.sort = key;
  state.page = 0;
  redraw(drawTable, focused);
}

const classOf = (column) => column.isText && "text";
function heading(column) {
  let arrow = "";
  let order = "none";
  if (state.sort === column.key) {
    arrow = state.down ? " ▼" : " ▲";
    order = state.down ? "descending" : "ascending";
  }
  const id = `sort-${column.key}`;
  return html("th", { scope: "col", class: classOf(column), "aria-sort": order },
    html("button", { type: "button", id, onclick: () => sortBy(column.key, id) }, column.label + arrow));
}

function shorten(text) {
  if (text.length <= CHARACTERS_IN_TABLE) return text;
  return `${text.slice(0, CHARACTERS_IN_TABLE)}…`;
}

// A row of the table, which a click opens or closes.
function line(row) {
  const id = `pair-${row + 1}`;
  const hasTokens = hasAlignments(row);
  const toggle = () => {
    // A click that ends a selection of text opens nothing.
    if (String(getSelection())) return;
    if (!opened.delete(row)) opened.add(row);
    redraw(drawTable, id);
  };
  // The first column is the button.
  const cells = columns().slice(1).map(({ value, isText, show = isText ? shorten : String }) =>
    html("td", { class: classOf({ isText }), dir: isText && "auto" }, show(value(row))));
  const button = html("button", {
    type: "button", id, class: hasTokens && "tokens", "aria-expanded": String(opened.has(row)),
    "aria-label": `pair ${row + 1}${hasTokens ? ", with tokens" : ""}`,
  }, String(row + 1));
  return html("tr", { class: "row", onclick: toggle }, html("td", {}, button), ...cells);
}

// A button that turns the page of the table.
function turnButton(id, label, step, pages) {
  const isEnd = state.page + step < 0 || state.page + step >= pages;
  const onclick = () => {
    if (isEnd) return;
    state.page += step;
    redraw(drawTable, id);
    document.getElementById("pairs").scrollIntoView();
  };
  // It is not disabled because a disabled button loses the focus.
  return html("button", { type: "button", id, "aria-disabled": String(isEnd), onclick }, label);
}

export function drawTable() {
  const found = sortRows(selectRows());
  const size = isPrinting ? Infinity : ROWS_PER_PAGE;
  const pages = Math.max(1, Math.ceil(found.length / size));
  state.page = isPrinting ? 0 : Math.min(state.page, pages - 1);
  const shown = isPrinting ? found : found.slice(state.page * size, (state.page + 1) * size);
  let caption = `${found.length} of ${countPairs(count)}, page ${state.page + 1} of ${pages}`;
  if (Object.keys(data.alignments).length) caption += "; a bold number opens to tokens";
  const table = html("table", { class: "pairs" }, html("caption", { "aria-live": "polite" }, caption));
  if (shown.length) table.append(html("thead", {}, html("tr", {}, ...columns().map(heading))));
  const body = html("tbody");
  for (const row of shown) {
    body.append(line(row));
    if (opened.has(row)) body.append(detail(row));
  }
  table.append(body);
  document.getElementById("pairs").replaceChildren(table,
    html("p", { class: "pager", hidden: pages === 1 },
      turnButton("previous", "Previous", -1, pages), " ", turnButton("next", "Next", 1, pages)));
  drawChips();
  remember();
}

// A button that removes a part of the selection.
const chip = (id, change, ...content) =>
  html("button", { type: "button", class: "chip", id, onclick: () => select(change, "filter") }, ...content, " ✕");

// What a chart or a word has selected.
function drawChips() {
  const chips = [];
  if (state.bucket) {
    const { key, limits, bin } = state.bucket;
    const isLast = bin === BINS - 1;
    const to = isLast ? "or more" : `to ${edge(key, bin + 1, limits)}`;
    chips.push(chip("chip-range", { bucket: null }, `${VALUES[key][0]} ${edge(key, bin, limits)} ${to}`));
  }
  if (state.word) chips.push(chip("chip-word", { word: null }, "“", wordInLine(state.word.text), "”"));
  document.getElementById("chips").replaceChildren(...chips);
}
