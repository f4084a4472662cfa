// The report of the validations of a training, any two of which are compared, and the course of F1.
import { count, data } from "./report_data.js";
import { whenSelected } from "./selection.js";
import { curve } from "./charts.js";
import { compareSystems } from "./comparison.js";
import { showReport } from "./report.js";

whenSelected(() => {
  if (count < 2) return;
  const f1 = data.summary.map((means) => means.f1);
  const means = f1.map(({ mean }) => mean ?? NaN);
  document.getElementById("charts").prepend(curve("F1 over the training, and the best validation", means, f1));
});
let adjusted = "";
if (data.comparisons > 1)
  adjusted = ` adjusted for the ${data.comparisons} pairs of the first, the best and the last two validations (Holm)`;
compareSystems(adjusted);
showReport();
