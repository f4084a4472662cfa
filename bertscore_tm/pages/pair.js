const { candidate, reference, alignment } = await readData();
const pair = drawPair(null, candidate, [reference], alignment, lowestSimilarity([alignment]));
document.getElementById("pair").append(pair);
document.body.dataset.ready = "true";
