// The data of a report, and what is read of them: scores, texts and facts of a pair, and means with their intervals.
// A system is a number, and so is a row, which is a pair of each system.
import { format, readData } from "./elements.js";

export const data = await readData();
export const count = data.references.length;
export const rows = Array.from({ length: count }, (_, row) => row);
export const lastSystem = data.names.length - 1;
// Of one system, A and B are the same. Of several, and of the validations of a training, they are compared.
export const isComparison = data.kind !== "one";
export const shownSides = isComparison ? ["a", "b"] : ["a"];
export const groups = [...new Set(data.labels)].sort();

export const score = (system, row, name = "f1") => data.scores[system][name][row] ?? NaN;
export const alignmentOf = (system, row) => data.alignments[row]?.[system];
export const hasAlignments = (row) => row in data.alignments;
export const candidateOf = (system, row) => data.candidates[system]?.[row] ?? "";
// The reference with the best F1, of several.
export function referenceOf(system, row) {
  const number = alignmentOf(system, row)?.reference ?? data.chosen[system]?.[row] ?? 0;
  return data.references[row][number];
}
export const truncationOf = (system, row) => data.truncated?.[system]?.[row];
export const unknownTextOf = (system, row) => data.unknown?.[system]?.[row];
const emptyRows = data.empty.map((empty) => new Set(empty));
export const isEmpty = (system, row) => emptyRows[system].has(row);

export const finite = (values) => values.filter(Number.isFinite);
const sum = (values) => values.reduce((total, value) => total + value, 0);

// The 97.5% quantile of Student's t with some degrees of freedom, by its expansion in 1 / freedom (Abramowitz and
// Stegun, 26.7.5). It is good to 0.4% from 3 degrees of freedom on.
function quantileOfT(freedom) {
  const z = 1.959964; // the quantile of the normal distribution
  const first = (z ** 3 + z) / 4;
  const second = (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96;
  const third = (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384;
  return z + first / freedom + second / freedom ** 2 + third / freedom ** 3;
}

// Mean and 95% interval, which ends at the bounds of the values.
export function meanOf(values, bounds) {
  const n = values.length;
  const mean = sum(values) / n;
  // An interval of pairs that depend on each other would need their groups, which the page does not have.
  if (n < 4 || data.isGrouped) return { mean, low: null, high: null };
  const variance = sum(values.map((value) => (value - mean) ** 2)) / (n - 1);
  const halfWidth = quantileOfT(n - 1) * Math.sqrt(variance / n);
  const low = Math.max(mean - halfWidth, bounds.low ?? -Infinity);
  const high = Math.min(mean + halfWidth, bounds.high ?? Infinity);
  return { mean, low, high };
}

export const signed = (x) => (x > 0 ? "+" : "") + format(x);
export const countPairs = (n) => `${n} ${n === 1 ? "pair" : "pairs"}`;
// Whose a number is: of A or of B, on a page that compares them.
export const ofSide = (side) => (isComparison ? ` of ${side.toUpperCase()}` : "");
