// The page of one alignment: a candidate and a reference with their tokens.
import { readData } from "./elements.js";
import { drawPair, lowestSimilarity } from "./tokens.js";

const { candidate, reference, alignment } = await readData();
const pair = drawPair(null, candidate, [reference], alignment, lowestSimilarity([alignment]));
document.getElementById("pair").append(pair);
document.body.dataset.ready = "true";
