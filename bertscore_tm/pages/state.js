// What the page shows: the data, what its kind has, the two systems, what is selected, and its address.
const data = await readData();
const count = data.references.length, last = data.names.length - 1;
const START = { a: data.pair[0], b: data.pair[1], down: false, filter: "all", query: "", page: 0, bucket: null, word: null };
const state = {};
const opened = new Set();
const rows = Array.from({ length: count }, (_, row) => row);
const lowest = lowestSimilarity(Object.values(data.alignments).flatMap((row) => Object.values(row)));

const signed = (x) => (x > 0 ? "+" : "") + format(x);
const score = (system, row, number = 2) => data.scores[system][number][row] ?? NaN;
const difference = (row) => score(state.b, row) - score(state.a, row);
// By how much B is above A, beyond rounding.
const gain = (row) => (Math.abs(difference(row)) < data.tie ? 0 : difference(row));
// The reference with the best F1, of several.
const chosen = (system, row) => data.alignments[row]?.[system]?.reference ?? data.chosen[system]?.[row] ?? 0;
const reference = (row) => data.references[row][chosen(state.b, row)];
const textOf = (system, row) => data.candidates[system]?.[row] ?? "";
const isCut = (system, row) => data.truncated?.[system]?.[row];
const isUnknown = (system, row) => data.unknown?.[system]?.[row];
const countPairs = (n) => `${n} ${n === 1 ? "pair" : "pairs"}`;
const groups = [...new Set(data.labels)].sort();
const emptyRows = data.empty.map((empty) => new Set(empty));
const either = (test) => (row) => test(state.a, row) || test(state.b, row);

// The page of one system, where A and B are the same; of two; of several, and of the validations of a training.
const scoreColumn = (key, label, side, number = 2) =>
  ({ key, label, value: (row) => score(state[side], row, number), show: format, wide: key !== "f1" });
const ONE = {
  sides: ["a"], of: () => "", selects: [], filters: {}, sort: "f1", heads: ["similarity"], where: "",
  columns: [scoreColumn("f1", "F1", "a"), scoreColumn("precision", "P", "a", 0), scoreColumn("recall", "R", "a", 1)],
  name: (system, numbers) => numbers, start: () => {}, curves: () => [], gains: () => [], say: () => [], course: () => [],
};
const TWO = {
  ...ONE, sides: ["a", "b"], of: (side) => ` of ${side.toUpperCase()}`, selects: ["a", "b"], sort: "difference",
  filters: { a: ["A better than B", (row) => gain(row) < 0], b: ["B better than A", (row) => gain(row) > 0] },
  heads: ["A", "B"], where: ", where B loses to A",
  columns: [scoreColumn("a", "F1 A", "a"), scoreColumn("b", "F1 B", "b"),
    { key: "difference", label: "B − A", value: difference, show: signed }],
  name: (system, numbers) => `${data.names[system]}: ${numbers}`, gains: drawGains, say: sayDifference,
};
const KIND = {
  one: ONE,
  several: { ...TWO, start: drawMatrix, tested: (n) => `all ${n} pairs of systems` },
  history: { ...TWO, tested: (n) => `the ${n} pairs of the first, the best and the last two validations`,
    curves: () => [curve("F1 over the training, and the best validation", data.summary.map((of) => of[2][0] ?? NaN),
      data.summary.map((of) => of[2].slice(1)))],
    course: (row) => [html("div", { class: "charts" },
      curve("F1 of this pair over the training", data.names.map((_, system) => score(system, row))))] },
}[data.kind];
const FILTERS = {
  all: ["all pairs", () => true],
  worst: ["worst tenth by F1", (row) => score(state.b, row) <= worstLimit],
  ...KIND.filters,
  truncated: ["truncated", either(isCut)],
  unknown: ["with unknown text", either(isUnknown)],
  empty: ["empty", either((system, row) => emptyRows[system].has(row))],
  aligned: ["with tokens", (row) => row in data.alignments],
  ...Object.fromEntries(groups.map((label) => [`group ${label}`, [`group ${label}`, (row) => data.labels[row] === label]])),
};
// Values of the series of charts; a click on a bar selects the pairs of its bin.
const VALUES = {
  a: [`F1${KIND.of("a")}`, (row) => score(state.a, row)],
  b: ["F1 of B", (row) => score(state.b, row)],
  difference: ["B − A", difference],
  length: ["characters of the reference", (row) => reference(row).length],
};
const BINS = 40;
const binOf = (v, [low, high]) => Math.min(BINS - 1, Math.floor(((v - low) / (high - low)) * BINS));
const edgeOf = (bin, [low, high]) => low + (bin / BINS) * (high - low);
// The edge as it is shown; lengths are whole numbers.
const edge = (key, bin, limits) => key === "length" ? String(Math.ceil(edgeOf(bin, limits))) : format(edgeOf(bin, limits));
let worstLimit = 0, searched = null;

// Rows that pass the filter, the bucket of a chart, the word and the search, of several words all.
function selectRows() {
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
const finite = (values) => values.filter(Number.isFinite);
const isFiltered = () => state.filter !== "all" || state.bucket || state.word || state.query;

// Mean and 95% interval: quantile of Student's t by its expansion in 1/n, good to 0.4% from 4 values on.
function meanOf(values, [least, largest]) {
  const n = values.length, mean = values.reduce((sum, x) => sum + x, 0) / n, z = 1.959964, f = n - 1;
  if (n < 4 || data.isGrouped) return [mean, null, null];
  const error = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / f / n);
  const t = z + (z ** 3 + z) / (4 * f) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * f ** 2)
    + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * f ** 3);
  return [mean, Math.max(mean - t * error, least ?? -Infinity), Math.min(mean + t * error, largest ?? Infinity)];
}
const interval = (low, high, show = format) => (low === null ? "" : ` (${show(low)} to ${show(high)})`);
const adjusted = data.comparisons > 1 ? ` adjusted for ${KIND.tested(data.comparisons)} (Holm)` : "";

// The address holds what is shown, so that a view can be sent.
function remember() {
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
function recall() {
  Object.assign(state, START, { sort: KIND.sort });
  opened.clear();
  if (count === 1) opened.add(0);
  const parts = new URLSearchParams(location.hash.slice(1)), system = (name) => Number(parts.get(name) ?? state[name]);
  for (const side of ["a", "b"]) if (data.names[system(side)] !== undefined) state[side] = system(side);
  if (Object.hasOwn(FILTERS, parts.get("show"))) state.filter = parts.get("show");
  const [key, ...numbers] = (parts.get("range") ?? "").split(","), [low, high, bin] = numbers.map(Number);
  if (Object.hasOwn(VALUES, key) && low < high && bin < BINS) state.bucket = { key, limits: [low, high], bin };
  Object.assign(state, { query: parts.get("search") ?? "", down: parts.has("down"), sort: parts.get("sort") ?? state.sort });
  if (parts.has("word")) state.word = { text: parts.get("word"), side: Number(parts.get("side") === "1") };
  state.page = Math.max(1, Number(parts.get("page") ?? 1)) - 1;
  const pair = Number(parts.get("pair"));
  if (pair >= 1 && pair <= count) opened.add(pair - 1);
  return pair;
}
