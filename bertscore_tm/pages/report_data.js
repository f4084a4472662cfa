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
// Mean and 95% interval: quantile of Student's t by its expansion in 1/n, good to 0.4% from 4 values on.
export function meanOf(values, bounds) {
  const n = values.length, mean = values.reduce((sum, x) => sum + x, 0) / n, z = 1.959964, f = n - 1;
  if (n < 4 || data.isGrouped) return { mean, low: null, high: null };
  const error = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / f / n);
  const t = z + (z ** 3 + z) / (4 * f) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * f ** 2)
    + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * f ** 3);
  const low = Math.max(mean - t * error, bounds.low ?? -Infinity);
  return { mean, low, high: Math.min(mean + t * error, bounds.high ?? Infinity) };
}

export const signed = (x) => (x > 0 ? "+" : "") + format(x);
export const countPairs = (n) => `${n} ${n === 1 ? "pair" : "pairs"}`;
// Whose a number is: of A or of B, on a page that compares them.
export const ofSide = (side) => (isComparison ? ` of ${side.toUpperCase()}` : "");
