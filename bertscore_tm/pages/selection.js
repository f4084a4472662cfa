// What a report shows: systems A and B, and the pairs that a filter, a bar of a chart, a word and a search select.
// The address holds it. A change draws again what depends on it.
import { format } from "./elements.js";
import { wordsOf } from "./tokens.js";
import {
  alignmentOf, count, data, finite, groups, hasAlignments, isComparison, isEmpty, ofSide, referenceOf, rows,
  score, truncationOf, unknownTextOf,
} from "./report_data.js";

const START = { a: data.pair.a, b: data.pair.b, sort: isComparison ? "difference" : "f1", down: false, filter: "all",
  query: "", page: 0, bucket: null, word: null };
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

let worstLimit = 0, searched = null;
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
export const binOf = (v, [low, high]) => Math.min(BINS - 1, Math.floor(((v - low) / (high - low)) * BINS));
export const edgeOf = (bin, [low, high]) => low + (bin / BINS) * (high - low);
// The edge as it is shown; lengths are whole numbers.
export const edge = (key, bin, limits) => key === "length" ? String(Math.ceil(edgeOf(bin, limits))) : format(edgeOf(bin, limits));

// Rows that pass the filter, the bucket of a chart, the word and the search, of several words all.
export function selectRows() {
  if (state.filter === "worst") {
    const sorted = finite(rows.map((row) => score(state.b, row))).sort((a, b) => a - b);
    worstLimit = sorted[Math.ceil(sorted.length / 10) - 1];
  }
  let found = rows.filter(FILTERS[state.filter][1]);
  if (state.bucket) {
    const { key, limits, bin } = state.bucket, value = VALUES[key][1];
    found = found.filter((row) => binOf(value(row), limits) === bin);
  }
  if (state.word) found = found.filter(hasWord(state.word));
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    const texts = (row) => [...data.candidates.map((one) => one?.[row] ?? ""), ...data.references[row], data.sources?.[row] ?? ""];
    searched ??= rows.map((row) => texts(row).join("\n").toLowerCase());
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
  if (focused) (document.getElementById(focused) ?? document.getElementById("filter")).focus({ preventScroll });
}

// The address holds what is shown, so that a view can be sent.
export function remember() {
  const pair = [...opened].at(-1), parts = { a: state.a, b: state.b, sort: state.sort };
  if (state.down) parts.down = 1;
  if (state.filter !== "all") parts.show = state.filter;
  if (state.query) parts.search = state.query;
  if (state.word) Object.assign(parts, { word: state.word.text, side: state.word.side });
  if (state.page) parts.page = state.page + 1;
  if (state.bucket) parts.range = [state.bucket.key, ...state.bucket.limits, state.bucket.bin];
  if (pair !== undefined) parts.pair = pair + 1;
  const hash = `#${new URLSearchParams(parts)}`;
  // An address that Back or Forward has just shown is left alone.
  if (hash === location.hash) return;
  try { history.replaceState(null, "", hash); } catch { /* a frame of a notebook has none */ }
}
export function recall() {
  Object.assign(state, START);
  opened.clear();
  if (count === 1) opened.add(0);
  const parts = new URLSearchParams(location.hash.slice(1)), system = (name) => Number(parts.get(name) ?? state[name]);
  for (const side of ["a", "b"]) if (data.names[system(side)] !== undefined) state[side] = system(side);
  if (Object.hasOwn(FILTERS, parts.get("show"))) state.filter = parts.get("show");
  const [key, ...numbers] = (parts.get("range") ?? "").split(","), [low, high, bin] = numbers.map(Number);
  if (Object.hasOwn(VALUES, key) && low < high && bin < BINS) state.bucket = { key, limits: [low, high], bin };
  Object.assign(state, { query: parts.get("search") ?? "", down: parts.has("down"), sort: parts.get("sort") ?? state.sort });
  if (parts.has("word")) {
    const side = parts.get("side") === "reference" ? "reference" : "candidate";
    state.word = { text: parts.get("word"), side };
  }
  state.page = Math.max(1, Number(parts.get("page") ?? 1)) - 1;
  const pair = Number(parts.get("pair"));
  if (pair >= 1 && pair <= count) opened.add(pair - 1);
  return pair;
}
