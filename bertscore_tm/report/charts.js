// Charts of the pairs that are shown; a click on a bar shows its pairs alone.

const box = (attributes, left, right, bottom, top, ...children) =>
  svg("rect", { ...attributes, x: left, width: right - left, y: top, height: bottom - top }, ...children);
function range(values) {
  const [low, high] = finite(values).reduce(([l, h], x) => [Math.min(l, x), Math.max(h, x)], [Infinity, -Infinity]);
  if (low > high) return [0, 1];
  return low < high ? [low, high] : [low - 0.5, low + 0.5];
}
function chart(title, label, x, y, draw, role = "img") {
  const [W, H, L, B] = [270, 180, 40, 30];
  const right = (v) => L + ((v - x.range[0]) / (x.range[1] - x.range[0])) * (W - L - 8);
  const up = (v) => H - B - ((v - y.range[0]) / (y.range[1] - y.range[0])) * (H - B - 8);
  const text = (at, anchor, ...content) => svg("text", { x: at[0], y: at[1], "text-anchor": anchor }, ...content);
  const digits = ([low, high]) => Math.max(0, 1 - Math.floor(Math.log10(high - low)));
  const end = ({ range }, i) => range[i].toFixed(Number.isInteger(range[i]) ? 0 : digits(range));
  return html("figure", {}, html("figcaption", {}, html("h2", {}, title)),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role, "aria-label": `${title}. ${label}` },
      svg("path", { class: "axis", fill: "none", d: `M${L},8V${H - B}H${W - 8}` }),
      text([L, H - 16], "start", x.ends?.[0] ?? end(x, 0)),
      text([W - 8, H - 16], "end", x.ends?.[1] ?? end(x, 1)),
      text([(L + W) / 2, H - 4], "middle", x.name),
      text([L - 4, H - B], "end", end(y, 0)), text([L - 4, 14], "end", end(y, 1)),
      text([L + 4, 14], "start", y.name), ...draw(right, up)));
}
// Two series share the width of a bin, so that both are seen.
function histogram(title, name, series, shown) {
  const values = series.map(({ key }) => shown.map(VALUES[key][1]));
  const limits = range(values.flat());
  const counts = values.map((of) => {
    const bins = new Array(BINS).fill(0);
    for (const v of finite(of)) bins[binOf(v, limits)] += 1;
    return bins;
  });
  const most = Math.max(1, ...counts.flat()), share = (limits[1] - limits[0]) / BINS / series.length;
  const label = series.map((one, s) => `${one.name}: ${describe(values[s])}`).join("; ");
  let first = true;
  return chart(title, label, { range: limits, name }, { range: [0, most], name: "pairs" }, (right, up) =>
    counts.flatMap((bins, s) => bins.map((n, bin) => {
      if (n === 0) return "";
      const { key, style } = series[s], low = edgeOf(bin, limits), left = low + s * share;
      const onclick = () => select({ bucket: { key, limits, bin } });
      const said = `${VALUES[key][0]} ${format(low)} to ${format(edgeOf(bin + 1, limits))}: ${n} pairs`;
      const tabindex = first ? "0" : "-1";
      first = false;
      return box({ class: `bar ${style}`, role: "button", tabindex, "aria-label": said, onclick, onkeydown: moveOrChoose },
        right(left), right(left + share), up(0), up(n), svg("title", {}, `${said}; click to show them`));
    })), "group");
}
// One bar of a chart is in the order of Tab, arrow keys move to the others.
function moveOrChoose(event) {
  const bar = event.target, bars = [...bar.parentNode.querySelectorAll(".bar")];
  if (event.key === "Enter" || event.key === " ") bar.dispatchEvent(new MouseEvent("click"));
  const next = bars[bars.indexOf(bar) + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? NaN)];
  if (next) [bar.tabIndex, next.tabIndex] = [-1, 0];
  next?.focus();
  if (next || event.key === " ") event.preventDefault();
}
function density(title, xs, ys, xName, yName, square = false) {
  const both = range([...xs, ...ys]), [xRange, yRange] = square ? [both, both] : [range(xs), range(ys)];
  const cells = new Map();
  xs.forEach((x, i) => {
    if (!Number.isFinite(x) || !Number.isFinite(ys[i])) return;
    const key = binOf(x, xRange) * BINS + binOf(ys[i], yRange);
    cells.set(key, (cells.get(key) ?? 0) + 1);
  });
  const most = Math.log1p(Math.max(1, ...cells.values()));
  const label = `${xName}: ${describe(xs)}; ${yName}: ${describe(ys)}`;
  return chart(title, label, { range: xRange, name: xName }, { range: yRange, name: yName }, (right, up) => [
    ...[...cells].map(([key, n]) => {
      const i = Math.floor(key / BINS), j = key % BINS;
      const style = { class: "cell a", opacity: 0.3 + (0.7 * Math.log1p(n)) / most };
      return box(style, right(edgeOf(i, xRange)), right(edgeOf(i + 1, xRange)), up(edgeOf(j, yRange)), up(edgeOf(j + 1, yRange)));
    }),
    ...(square ? [svg("path", { class: "axis", d: `M${both.map((v) => `${right(v)},${up(v)}`).join("L")}` })] : []),
  ]);
}
function curve(title, values, ends = null) {
  const limits = range([...values, ...(ends ?? []).flat().filter((x) => x !== null)]);
  const x = { range: [0, Math.max(1, last)], name: "validation", ends: [data.names[0], data.names[last]] };
  const label = values.map((v, i) => `${data.names[i]}: ${format(v)}`).join("; ");
  return chart(title, label, x, { range: limits, name: "F1" }, (right, up) => [
    svg("polyline", { class: "line a",
      points: values.map((v, i) => (Number.isFinite(v) ? `${right(i)},${up(v)}` : "")).join(" ") }),
    ...(ends ?? []).flatMap(([low, high], i) => low === null ? []
      : [svg("line", { class: "line a", x1: right(i), x2: right(i), y1: up(low), y2: up(high) })]),
    ...values.map((v, i) => Number.isFinite(v)
      ? svg("circle", { class: `cell ${i === data.best && ends ? "b" : "a"}`, cx: right(i), cy: up(v),
        r: i === data.best && ends ? 5 : 2.5 }, svg("title", {}, `${data.names[i]}: ${format(v)}`)) : ""),
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
function drawCharts(shown) {
  if (count < 2) return;
  const side = (key) => ({ key, name: data.names[state[key]], style: key });
  const a = side("a"), b = side("b"), valuesOf = ({ key }) => shown.map(VALUES[key][1]);
  const legend = (one) => html("span", { class: `key ${one.style}` }, `${one.style.toUpperCase()}: ${one.name}`);
  const ofShown = isFiltered() ? ` of the ${shown.length} pairs that are shown` : "";
  const figures = [histogram(`Distribution of F1${ofShown}`, "F1", isSingle ? [a] : [a, b], shown)];
  const length = { key: "length", name: "references", style: "a" }, of = isSingle ? "F1" : "F1 of B";
  figures.push(density(`F1 against length${ofShown}`, valuesOf(length), valuesOf(b), VALUES.length[0], of),
    histogram(`Length of the reference${ofShown}`, VALUES.length[0], [length], shown));
  const sentences = [];
  if (!isSingle) {
    figures[0].append(html("p", {}, legend(a), legend(b)));
    const gains = data.differences[state.a][state.b], better = (sign) => shown.filter((row) => sign * gain(row) > 0).length;
    const [mean, low, high] = isFiltered() ? meanOf(finite(shown.map(difference)), data.gainBounds) : gains;
    const [wins, losses] = isFiltered() ? [better(1), better(-1)] : [gains[3], data.differences[state.b][state.a][3]];
    const p = isFiltered() ? "" : testOf(state.a, state.b);
    sentences.push(html("p", { id: "difference" }, html("bdi", {}, b.name), " minus ", html("bdi", {}, a.name),
      ": mean difference of F1 ", html("strong", {}, signed(mean)), low === null ? "" : ` (95% interval ${signed(low)} to ${signed(high)})`,
      `${p}, better in ${wins} pairs, worse in ${losses}${ofShown && `,${ofShown}`}`));
    figures.push(histogram(`Difference of F1, B − A${ofShown}`, "B − A", [{ key: "difference", name: "B − A", style: "a" }], shown),
      density(`A against B${ofShown}`, valuesOf(a), valuesOf(b), "F1 of A", "F1 of B", true));
  }
  if (ofShown)
    sentences.push(html("p", { id: "filtered" }, `Mean F1${ofShown}: `, ...(isSingle ? [b] : [a, b]).flatMap((one, i) => {
      const [mean, low, high] = meanOf(finite(valuesOf(one)), data.bounds);
      return [i ? "; " : "", html("bdi", {}, one.name), ` ${format(mean)}${interval(low, high)}`];
    })));
  if (data.isHistory) {
    const means = data.summary.map((one) => one[2]);
    const ends = means.map((one) => one.slice(1));
    figures.unshift(curve("F1 over the training, and the best validation", means.map((one) => one[0] ?? NaN), ends));
  }
  document.getElementById("charts").replaceChildren(...figures);
  document.getElementById("found").replaceChildren(...sentences);
}

// Of more than two systems: the difference of each two, of which a click sets A and B.
function drawMatrix() {
  if (last < 2 || data.isHistory) return;
  const largest = Math.max(...data.differences.flat().map(([mean]) => Math.abs(mean ?? 0))) || 1;
  const cell = (a, b) => {
    const [mean, , , wins] = data.differences[a][b];
    if (a === b) return html("td", {}, "");
    const p = testOf(a, b);
    const onclick = () => { document.getElementById("a").value = a; document.getElementById("b").value = b; select({ a, b }); };
    const share = Math.min(1, Math.abs(mean ?? 0) / largest).toFixed(3);
    return html("td", { class: mean > 0 ? "more" : "less", style: `--share: ${share}` },
      html("button", { type: "button", id: `matrix-${a}-${b}`, onclick, "aria-label": `${data.names[b]} minus ${data.names[a]}${p}` }, signed(mean)),
      html("small", {}, ` ${wins} wins`, p.split(" (")[0]));
  };
  document.getElementById("matrix").replaceChildren(html("table", {},
    html("caption", {}, `Difference of F1, column minus row; wins of the column; p adjusted for ${data.comparisons.length} comparisons (Holm)`),
    html("thead", {}, html("tr", {}, html("td", {}), ...data.names.map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, ...data.names.map((name, a) =>
      html("tr", {}, html("th", { scope: "row" }, name), ...data.names.map((_, b) => cell(a, b)))))));
}
