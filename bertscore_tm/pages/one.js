// The report of one system: the distribution of its scores, the words that it misses, and its pairs.
import { showReport } from "./report.js";

showReport();
