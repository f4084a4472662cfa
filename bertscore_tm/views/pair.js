const { title, candidate, reference, alignment } = await readData();
const pair = drawPair(title, candidate, [reference], alignment, lowestSimilarity([alignment]));
document.getElementById("pair").append(pair);
document.body.dataset.ready = "true";
