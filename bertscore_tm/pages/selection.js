// What a report shows: systems A and B, and the pairs that a filter, a bar of a chart, a word and a search select.
// The address holds it. A change draws again what depends on it.
import { format } from "./elements.js";
import { wordsOf } from "./tokens.js";
import {
  alignmentOf, count, data, finite, groups, hasAlignments, isComparison, isEmpty, ofSide, referenceOf, rows,
  score, truncationOf, unknownTextOf,
} from "./report_data.js";

// What a page without an address shows. A bucket is a bin of a chart, and a word is one of the missed words.
const START = {
  a: data.pair.a, b: data.pair.b, sort: isComparison ? "difference" : "f1", down: false, filter: "all", query: "", page: 0,
  bucket: null, word: null,
};
export const state = {};
// Rows whose texts are shown.
export const opened = new Set();

export const difference = (row) => score(state.b, row) - score(state.a, row);
// By how much B is above A, beyond rounding.
export const gain = (row) => (Math.abs(difference(row)) < data.tie ? 0 : difference(row));
export const shownReference = (row) => referenceOf(state.b, row);
const either = (test) => (row) => test(state.a, row) || test(state.b, row);
// Whether a word occurs on a side, candidate or reference, of the pairs of A or B, of those with tokens.
const hasWord = ({ text, side }) => either((system, row) =>
  wordsOf(alignmentOf(system, row), side).some((word) => word.text.toLowerCase() === text.toLowerCase()));

let worstLimit = 0;
let searched = null; // texts of each row, once somebody has searched
// A filter has a label, and a function that says whether it shows a row.
export const FILTERS = {
  all: ["all pairs", () => true],
  worst: ["worst tenth by F1", (row) => score(state.b, row) <= worstLimit],
};
if (isComparison) {
  FILTERS.a = ["A better than B", (row) => gain(row) < 0];
  FILTERS.b = ["B better than A", (row) => gain(row) > 0];
}
FILTERS.truncated = ["truncated", either(truncationOf)];
FILTERS.unknown = ["with unknown text", either(unknownTextOf)];
FILTERS.empty = ["empty", either(isEmpty)];
FILTERS.aligned = ["with tokens", hasAlignments];
for (const label of groups) FILTERS[`group ${label}`] = [`group ${label}`, (row) => data.labels[row] === label];

// Values of the series of charts, with their labels; a click on a bar selects the pairs of its bin.
export const VALUES = {
  a: [`F1${ofSide("a")}`, (row) => score(state.a, row)],
  b: ["F1 of B", (row) => score(state.b, row)],
  difference: ["B − A", difference],
  length: ["characters of the reference", (row) => shownReference(row).length],
};
export const BINS = 40;
// The highest value is in the last bin, not in one of its own.
export const binOf = (value, [low, high]) => Math.min(BINS - 1, Math.floor(((value - low) / (high - low)) * BINS));
export const edgeOf = (bin, [low, high]) => low + (bin / BINS) * (high - low);
// The lower edge of a bin as it is shown.
export function edge(key, bin, limits) {
  const value = edgeOf(bin, limits);
  if (key === "length") return String(Math.ceil(value)); // lengths are whole numbers
  return format(value);
}

// The F1 of B up to which a row is in the worst tenth.
function findWorstLimit() {
  const sorted = finite(rows.map((row) => score(state.b, row))).sort((a, b) => a - b);
  return sorted[Math.ceil(sorted.length / 10) - 1];
}

// The texts of a row in small letters, in which a search looks.
function searchedText(row) {
  const candidates = data.candidates.map((texts) => texts?.[row] ?? "");
  const texts = [...candidates, ...data.references[row], data.sources?.[row] ?? ""];
  return texts.join("\n").toLowerCase();
}

// Rows that pass the filter, the bucket of a chart, the word and the search, of several words all.
export function selectRows() {
  if (state.filter === "worst") worstLimit = findWorstLimit();
  let found = rows.filter(FILTERS[state.filter][1]);
  if (state.bucket) {
    const { key, limits, bin } = state.bucket;
    const value = VALUES[key][1];
    found = found.filter((row) => binOf(value(row), limits) === bin);
  }
  if (state.word) found = found.filter(hasWord(state.word));
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    // Converted at the first search only, because it is slow for large reports.
    searched ??= rows.map(searchedText);
    found = found.filter((row) => words.every((word) => searched[row].includes(word)));
  }
  return found;
}
export const isFiltered = () => state.filter !== "all" || state.bucket || state.word || state.query;

const drawings = [];
// Call a function with the selected rows on each change of the selection, in the order of these calls.
export const whenSelected = (draw) => drawings.push(draw);
// Change what is shown, and draw all that depends on it.
export function select(changes, focused) {
  Object.assign(state, { page: 0 }, changes);
  const shown = selectRows();
  redraw(() => {
    for (const draw of drawings) draw(shown);
  }, focused);
}
// Draw again, and focus the control that has this id, because drawing replaces the one that was used.
export function redraw(draw, focused = document.activeElement.id) {
  // Only a keyboard's user sees the focus, so that a click does not scroll.
  const preventScroll = !document.activeElement.matches(":focus-visible");
  draw();
  if (!focused) return;
  // A removed chip cannot have the focus, so the filter next to it gets it.
  const control = document.getElementById(focused) ?? document.getElementById("filter");
  control.focus({ preventScroll });
}

// The address holds what is shown, so that a view can be sent.
export function remember() {
  const parts = { a: state.a, b: state.b, sort: state.sort };
  if (state.down) parts.down = 1;
  if (state.filter !== "all") parts.show = state.filter;
  if (state.query) parts.search = state.query;
  if (state.word) {
    parts.word = state.word.text;
    parts.side = state.word.side;
  }
  if (state.page) parts.page = state.page + 1; // people count from 1
  if (state.bucket) parts.range = [state.bucket.key, ...state.bucket.limits, state.bucket.bin];
  const lastOpened = [...opened].at(-1);
  if (lastOpened !== undefined) parts.pair = lastOpened + 1;
  const hash = `#${new URLSearchParams(parts)}`;
  // An address that Back or Forward has just shown is left alone.
  if (hash === location.hash) return;
  try {
    history.replaceState(null, "", hash);
  } catch {
    // A frame of a notebook has no address.
  }
}

// The bucket of a chart in the address, such as "a,0.5,0.9,12", or null if it is not one.
function readBucket(text) {
  const [key, ...numbers] = text.split(",");
  const [low, high, bin] = numbers.map(Number);
  const isKnown = Object.hasOwn(VALUES, key) && low < high && bin < BINS;
  if (!isKnown) return null;
  return { key, limits: [low, high], bin };
}

// Set the state from the address, and return the number of its pair, from 1, or 0. Anybody can write an address, so
// parts that do not fit the report are ignored.
export function recall() {
  Object.assign(state, START);
  opened.clear();
  if (count === 1) opened.add(0);
  const parts = new URLSearchParams(location.hash.slice(1));
  for (const side of ["a", "b"]) {
    const system = Number(parts.get(side) ?? state[side]);
    if (data.names[system] !== undefined) state[side] = system;
  }
  if (Object.hasOwn(FILTERS, parts.get("show"))) state.filter = parts.get("show");
  state.bucket = readBucket(parts.get("range") ?? "");
  state.query = parts.get("search") ?? "";
  state.down = parts.has("down");
  state.sort = parts.get("sort") ?? state.sort;
  if (parts.has("word")) {
    const side = parts.get("side") === "reference" ? "reference" : "candidate";
    state.word = { text: parts.get("word"), side };
  }
  state.page = Math.max(1, Number(parts.get("page") ?? 1)) - 1;
  const pair = Number(parts.get("pair"));
  if (pair >= 1 && pair <= count) opened.add(pair - 1);
  return pair;
}
