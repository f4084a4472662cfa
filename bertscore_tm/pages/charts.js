// Charts: histograms of the pairs that are shown, where a click on a bar shows its pairs alone, and curves over a training.
import { format, html, rove, svg } from "./elements.js";
import { countPairs, data, finite, lastSystem } from "./report_data.js";
import { BINS, VALUES, binOf, edge, edgeOf, select } from "./selection.js";

// Size of a chart and its margins, in units of its view box.
const SIZE = { width: 270, height: 190 };
const MARGIN = { left: 40, right: 8, top: 18, bottom: 30 };

// The lowest and the highest of some values, as two different numbers.
function range(values) {
  let low = Infinity;
  let high = -Infinity;
  // No Math.min(...values), because hundreds of thousands of arguments overflow the stack.
  for (const value of finite(values)) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1]; // there is no value
  if (low === high) return [low - 0.5, low + 0.5];
  return [low, high];
}

// An end of an axis as text: whole numbers without decimals, others with as many as tell both ends apart.
function labelOfEnd({ range: [low, high] }, value) {
  if (Number.isInteger(value)) return value.toFixed(0);
  const digits = Math.max(0, 1 - Math.floor(Math.log10(high - low)));
  return value.toFixed(digits);
}

// A figure with axes. An axis has a name, a range, and texts for its ends if these are not numbers. The function draw
// gets functions that convert values to positions, and returns the elements of the chart.
function chart(title, label, x, y, draw, role = "img") {
  const start = MARGIN.left;
  const end = SIZE.width - MARGIN.right;
  const base = SIZE.height - MARGIN.bottom;
  const share = ({ range: [low, high] }, value) => (value - low) / (high - low);
  const toX = (value) => start + share(x, value) * (end - start);
  const toY = (value) => base - share(y, value) * (base - MARGIN.top);
  const text = (left, top, anchor, content) => svg("text", { x: left, y: top, "text-anchor": anchor }, content);
  const [firstEnd, lastEnd] = x.ends ?? x.range.map((value) => labelOfEnd(x, value));
  const [low, high] = y.range;
  return html("figure", {},
    html("figcaption", {}, html("h2", {}, title)),
    svg("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role, "aria-label": `${title}. ${label}` },
      svg("path", { class: "axis", fill: "none", d: `M${start},${MARGIN.top}V${base}H${end}` }),
      text(start, SIZE.height - 16, "start", firstEnd),
      text(end, SIZE.height - 16, "end", lastEnd),
      text((start + SIZE.width) / 2, SIZE.height - 4, "middle", x.name),
      text(start - 4, base, "end", labelOfEnd(y, low)),
      text(start - 4, MARGIN.top + 6, "end", labelOfEnd(y, high)),
      text(start, 10, "start", y.name),
      ...draw(toX, toY)));
}

// How many values are in each bin of the limits.
function countInBins(values, limits) {
  const bins = new Array(BINS).fill(0);
  for (const value of finite(values)) bins[binOf(value, limits)] += 1;
  return bins;
}

// A bar of a histogram, which selects the pairs of its bin. The place has its left, right, bottom and top.
function bar({ key, style }, bin, limits, n, place) {
  const onclick = () => select({ bucket: { key, limits, bin } }, "chip-range");
  const onkeydown = (event) => {
    // Elements of SVG do not turn these keys into clicks, unlike buttons.
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onclick();
  };
  const [label] = VALUES[key];
  const said = `${label} ${edge(key, bin, limits)} to ${edge(key, bin + 1, limits)}: ${countPairs(n)}`;
  return svg("rect", {
    class: `bar ${style}`, role: "button", "aria-label": said, onclick, onkeydown,
    x: place.left, width: place.right - place.left, y: place.top, height: place.bottom - place.top,
  }, svg("title", {}, `${said}; click to show them`));
}

// A histogram of one or two series of the shown rows.
export function histogram(title, name, series, shown) {
  const values = series.map(({ key }) => shown.map(VALUES[key][1]));
  const limits = range(values.flat());
  const counts = values.map((valuesOfSeries) => countInBins(valuesOfSeries, limits));
  const most = Math.max(1, ...counts.flat());
  // Two series share the width of a bin, so that both are seen.
  const width = (limits[1] - limits[0]) / BINS / series.length;
  const label = series.map((one, number) => `${one.name}: ${describe(values[number])}`).join("; ");
  function drawBars(toX, toY) {
    const bars = [];
    counts.forEach((bins, number) => {
      bins.forEach((n, bin) => {
        if (n === 0) return;
        const left = edgeOf(bin, limits) + number * width;
        const place = { left: toX(left), right: toX(left + width), bottom: toY(0), top: toY(n) };
        bars.push(bar(series[number], bin, limits, n, place));
      });
    });
    return rove(bars);
  }
  const figure = chart(title, label, { range: limits, name }, { range: [0, most], name: "pairs" }, drawBars, "group");
  if (series.length > 1) {
    const names = series.map((one) => html("span", { class: `key ${one.style}` }, `${one.style.toUpperCase()}: ${one.name}`));
    figure.append(html("p", {}, ...names));
  }
  return figure;
}

// A value of each validation as a line. With intervals the values are means, of which the best one is marked.
export function curve(title, values, intervals = []) {
  const ends = intervals.flatMap(({ low, high }) => [low, high]);
  const limits = range([...values, ...ends]);
  const x = { range: [0, Math.max(1, lastSystem)], name: "validation", ends: [data.names[0], data.names[lastSystem]] };
  const said = (value, i) => `${data.names[i]}: ${format(value)}`;
  function drawCurve(toX, toY) {
    const points = [];
    const circles = [];
    values.forEach((value, i) => {
      if (!Number.isFinite(value)) return;
      points.push(`${toX(i)},${toY(value)}`);
      const isMarked = i === data.best && intervals.length > 0;
      const look = isMarked ? { class: "cell b", r: 5 } : { class: "cell a", r: 2.5 };
      circles.push(svg("circle", { ...look, cx: toX(i), cy: toY(value) }, svg("title", {}, said(value, i))));
    });
    const lines = [];
    intervals.forEach(({ low, high }, i) => {
      // A mean of few pairs has no interval.
      if (low !== null) lines.push(svg("line", { class: "line a", x1: toX(i), x2: toX(i), y1: toY(low), y2: toY(high) }));
    });
    return [svg("polyline", { class: "line a", points: points.join(" ") }), ...lines, ...circles];
  }
  return chart(title, values.map(said).join("; "), x, { range: limits, name: "F1" }, drawCurve);
}

// Median and range of some values in words, for those who do not see a chart.
function describe(values) {
  const sorted = finite(values).sort((a, b) => a - b);
  if (!sorted.length) return `median ${format(NaN)}, from ${format(NaN)} to ${format(NaN)}`;
  const middle = (sorted.length - 1) / 2;
  const median = (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
  return `median ${format(median)}, from ${format(sorted[0])} to ${format(sorted.at(-1))}`;
}
