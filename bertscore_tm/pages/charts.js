// Charts: histograms of the pairs that are shown, where a click on a bar shows its pairs alone, and curves over a training.
import { format, html, rove, svg } from "./elements.js";
import { countPairs, data, finite, lastSystem } from "./report_data.js";
import { BINS, VALUES, binOf, edge, edgeOf, select } from "./selection.js";

const box = (attributes, left, right, bottom, top, ...children) =>
  svg("rect", { ...attributes, x: left, width: right - left, y: top, height: bottom - top }, ...children);
function range(values) {
  const [low, high] = finite(values).reduce(([l, h], x) => [Math.min(l, x), Math.max(h, x)], [Infinity, -Infinity]);
  if (low > high) return [0, 1];
  return low < high ? [low, high] : [low - 0.5, low + 0.5];
}
function chart(title, label, x, y, draw, role = "img") {
  const [W, H, L, B, T] = [270, 190, 40, 30, 18];
  const right = (v) => L + ((v - x.range[0]) / (x.range[1] - x.range[0])) * (W - L - 8);
  const up = (v) => H - B - ((v - y.range[0]) / (y.range[1] - y.range[0])) * (H - B - T);
  const text = (at, anchor, ...content) => svg("text", { x: at[0], y: at[1], "text-anchor": anchor }, ...content);
  const digits = ([low, high]) => Math.max(0, 1 - Math.floor(Math.log10(high - low)));
  const end = ({ range }, i) => range[i].toFixed(Number.isInteger(range[i]) ? 0 : digits(range));
  return html("figure", {}, html("figcaption", {}, html("h2", {}, title)),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role, "aria-label": `${title}. ${label}` },
      svg("path", { class: "axis", fill: "none", d: `M${L},${T}V${H - B}H${W - 8}` }),
      text([L, H - 16], "start", x.ends?.[0] ?? end(x, 0)),
      text([W - 8, H - 16], "end", x.ends?.[1] ?? end(x, 1)),
      text([(L + W) / 2, H - 4], "middle", x.name),
      text([L - 4, H - B], "end", end(y, 0)), text([L - 4, T + 6], "end", end(y, 1)),
      text([L, 10], "start", y.name), ...draw(right, up)));
}
// Two series share the width of a bin, so that both are seen.
export function histogram(title, name, series, shown) {
  const values = series.map(({ key }) => shown.map(VALUES[key][1]));
  const limits = range(values.flat());
  const counts = values.map((of) => {
    const bins = new Array(BINS).fill(0);
    for (const v of finite(of)) bins[binOf(v, limits)] += 1;
    return bins;
  });
  const most = Math.max(1, ...counts.flat()), share = (limits[1] - limits[0]) / BINS / series.length;
  const label = series.map((one, s) => `${one.name}: ${describe(values[s])}`).join("; ");
  const figure = chart(title, label, { range: limits, name }, { range: [0, most], name: "pairs" }, (right, up) =>
    rove(counts.flatMap((bins, s) => bins.flatMap((n, bin) => {
      if (n === 0) return [];
      const { key, style } = series[s], low = edgeOf(bin, limits), left = low + s * share;
      const onclick = () => select({ bucket: { key, limits, bin } }, "chip-range");
      const onkeydown = (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onclick();
      };
      const said = `${VALUES[key][0]} ${edge(key, bin, limits)} to ${edge(key, bin + 1, limits)}: ${countPairs(n)}`;
      return box({ class: `bar ${style}`, role: "button", "aria-label": said, onclick, onkeydown },
        right(left), right(left + share), up(0), up(n), svg("title", {}, `${said}; click to show them`));
    }))), "group");
  if (series.length > 1) figure.append(html("p", {}, ...series.map(({ name, style }) =>
    html("span", { class: `key ${style}` }, `${style.toUpperCase()}: ${name}`))));
  return figure;
}
export function curve(title, values, intervals = []) {
  const limits = range([...values, ...intervals.flatMap(({ low, high }) => [low, high]).filter((x) => x !== null)]);
  // With intervals the values are means, of which the best one is marked.
  const isMarked = (i) => i === data.best && intervals.length > 0;
  const x = { range: [0, Math.max(1, lastSystem)], name: "validation", ends: [data.names[0], data.names[lastSystem]] };
  const label = values.map((v, i) => `${data.names[i]}: ${format(v)}`).join("; ");
  return chart(title, label, x, { range: limits, name: "F1" }, (right, up) => [
    svg("polyline", { class: "line a",
      points: values.map((v, i) => (Number.isFinite(v) ? `${right(i)},${up(v)}` : "")).join(" ") }),
    ...intervals.flatMap(({ low, high }, i) => low === null ? []
      : [svg("line", { class: "line a", x1: right(i), x2: right(i), y1: up(low), y2: up(high) })]),
    ...values.map((v, i) => Number.isFinite(v)
      ? svg("circle", { class: `cell ${isMarked(i) ? "b" : "a"}`, cx: right(i), cy: up(v),
        r: isMarked(i) ? 5 : 2.5 }, svg("title", {}, `${data.names[i]}: ${format(v)}`)) : ""),
  ]);
}
function describe(values) {
  const sorted = finite(values).sort((a, b) => a - b);
  const at = (q) => {
    const place = q * (sorted.length - 1), low = Math.floor(place);
    return format((sorted[low] ?? NaN) + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]));
  };
  return `median ${at(0.5)}, from ${at(0)} to ${at(1)}`;
}
