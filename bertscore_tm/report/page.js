(async () => {
  const ROWS_PER_PAGE = 50, CHARACTERS_IN_TABLE = 300, BINS = 40;
  const data = await readData();
  const count = data.references.length, last = data.names.length - 1, isSingle = last === 0;
  const state = { a: 0, b: last, sort: isSingle ? "f1" : "difference", down: false, filter: "all", query: "", page: 0 };
  const opened = new Set(count === 1 ? [0] : []);
  const asSets = (lists) => lists.map((rows) => new Set(rows));
  const sets = { truncated: asSets(data.truncated), empty: asSets(data.empty) };
  const lowest = lowestSimilarity(Object.values(data.alignments).flatMap((row) => Object.values(row)));

  const box = (attributes, left, right, bottom, top) =>
    svg("rect", { ...attributes, x: left, width: right - left, y: top, height: bottom - top });

  const signed = (x) => (x > 0 ? "+" : "") + format(x);
  const score = (system, row, number = 2) => data.scores[system][number][row] ?? NaN;
  const difference = (row) => score(state.b, row) - score(state.a, row);
  const textsOf = (system) => data.candidates[system] ?? data.candidates[last];
  const candidate = (row) => (data.candidates[state.b] === null ? "" : data.candidates[state.b][row]);
  const lengthOf = (row) => (textsOf(state.b) === null ? NaN : textsOf(state.b)[row].length);
  const rows = Array.from({ length: count }, (_, row) => row);
  const isIn = (name, row) => sets[name][state.a].has(row) || sets[name][state.b].has(row);

  const COLUMNS = [
    { key: "pair", label: "pair", value: (row) => row },
    ...(isSingle
      ? [["f1", 2, "F1"], ["precision", 0, "P"], ["recall", 1, "R"]].map(([key, number, label]) => ({
          key, label, value: (row) => score(0, row, number), show: format, wide: number < 2 }))
      : [{ key: "a", label: "F1 A", value: (row) => score(state.a, row), show: format, wide: true },
         { key: "b", label: "F1 B", value: (row) => score(state.b, row), show: format, wide: true },
         { key: "difference", label: "B − A", value: difference, show: signed }]),
    { key: "length", label: "length", value: lengthOf, wide: true },
    { key: "candidate", label: isSingle ? "candidate" : "candidate of B", value: candidate, isText: true },
    { key: "reference", label: "reference", value: (row) => data.references[row][0], isText: true, wide: true },
  ];
  const narrow = matchMedia("(max-width: 48rem)");
  const columns = () => COLUMNS.filter((column) => !(column.wide && narrow.matches));
  const FILTERS = {
    all: ["all pairs", () => true],
    worst: ["worst tenth by F1", (row) => score(state.b, row) <= worstLimit],
    ...(isSingle ? {} : {
      a: ["A better than B", (row) => difference(row) < 0],
      b: ["B better than A", (row) => difference(row) > 0] }),
    truncated: ["truncated", (row) => isIn("truncated", row)],
    empty: ["empty", (row) => isIn("empty", row)],
    aligned: ["with alignment", (row) => row in data.alignments],
  };
  let worstLimit = 0, searched = null;

  // Charts.
  const finite = (values) => values.filter(Number.isFinite);
  function range(values) {
    const [low, high] = finite(values).reduce(([l, h], x) => [Math.min(l, x), Math.max(h, x)], [Infinity, -Infinity]);
    return low < high ? [low, high] : [low - 0.5, low + 0.5];
  }
  function chart(title, label, x, y, draw) {
    const [W, H, L, B] = [270, 180, 40, 30];
    const right = (v) => L + ((v - x.range[0]) / (x.range[1] - x.range[0])) * (W - L - 8);
    const up = (v) => H - B - ((v - y.range[0]) / (y.range[1] - y.range[0])) * (H - B - 8);
    const text = (at, anchor, ...content) => svg("text", { x: at[0], y: at[1], "text-anchor": anchor }, ...content);
    const digits = ([low, high]) => Math.max(0, 1 - Math.floor(Math.log10(high - low)));
    const end = ({ range }, i) => range[i].toFixed(Number.isInteger(range[i]) ? 0 : digits(range));
    return html("figure", {}, html("figcaption", {}, html("h2", {}, title)),
      svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${label}` },
        svg("path", { class: "axis", fill: "none", d: `M${L},8V${H - B}H${W - 8}` }),
        text([L, H - 16], "start", x.ends?.[0] ?? end(x, 0)),
        text([W - 8, H - 16], "end", x.ends?.[1] ?? end(x, 1)),
        text([(L + W) / 2, H - 4], "middle", x.name),
        text([L - 4, H - B], "end", end(y, 0)), text([L - 4, 14], "end", end(y, 1)),
        text([L + 4, 14], "start", y.name), ...draw(right, up)));
  }
  function histogram(title, name, series) {
    const limits = range(series.flatMap((one) => one.values)), width = (limits[1] - limits[0]) / BINS;
    const counts = series.map((one) => {
      const bins = new Array(BINS).fill(0);
      for (const v of finite(one.values)) bins[Math.min(BINS - 1, Math.floor((v - limits[0]) / width))] += 1;
      return bins;
    });
    const most = Math.max(1, ...counts.flat());
    const label = series.map((one) => `${one.name}: ${describe(one.values)}`).join("; ");
    return chart(title, label, { range: limits, name }, { range: [0, most], name: "pairs" }, (right, up) =>
      counts.flatMap((bins, s) => bins.map((n, i) => {
        const left = limits[0] + i * width;
        return box({ class: `bar ${series[s].style}` }, right(left), right(left + width), up(0), up(n));
      })));
  }
  function density(title, xs, ys, xName, yName, square = false) {
    const both = range([...xs, ...ys]), [xRange, yRange] = square ? [both, both] : [range(xs), range(ys)];
    const place = (v, [low, high]) => Math.min(BINS - 1, Math.floor(((v - low) / (high - low)) * BINS));
    const at = (index, [low, high]) => low + (index / BINS) * (high - low);
    const cells = new Map();
    xs.forEach((x, i) => {
      if (!Number.isFinite(x) || !Number.isFinite(ys[i])) return;
      const key = place(x, xRange) * BINS + place(ys[i], yRange);
      cells.set(key, (cells.get(key) ?? 0) + 1);
    });
    const most = Math.log1p(Math.max(1, ...cells.values()));
    const label = `${xName}: ${describe(xs)}; ${yName}: ${describe(ys)}`;
    return chart(title, label, { range: xRange, name: xName }, { range: yRange, name: yName }, (right, up) => [
      ...[...cells].map(([key, n]) => {
        const i = Math.floor(key / BINS), j = key % BINS;
        const style = { class: "cell a", opacity: 0.3 + (0.7 * Math.log1p(n)) / most };
        return box(style, right(at(i, xRange)), right(at(i + 1, xRange)), up(at(j, yRange)), up(at(j + 1, yRange)));
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
      ...values.map((v, i) => Number.isFinite(v) ? svg("circle", { class: "cell a", cx: right(i), cy: up(v), r: 2.5 },
        svg("title", {}, `${data.names[i]}: ${format(v)}`)) : ""),
    ]);
  }
  function describe(values) {
    const sorted = finite(values).sort((a, b) => a - b);
    const at = (q) => format(sorted[Math.floor(q * (sorted.length - 1))] ?? NaN);
    return `median ${at(0.5)}, from ${at(0)} to ${at(1)}`;
  }
  function drawCharts() {
    if (count < 2) return;
    const f1 = (system) => rows.map((row) => score(system, row));
    const a = { name: data.names[state.a], values: f1(state.a), style: "a" };
    const b = { name: data.names[state.b], values: f1(state.b), style: "b" };
    let sentence = "";
    const label = (one) => html("span", { class: `key ${one.style}` }, `${one.style.toUpperCase()}: ${one.name}`);
    const figures = [histogram("Distribution of F1", "F1", isSingle ? [a] : [a, b])];
    if (textsOf(state.b) !== null) {
      const name = isSingle ? "F1" : "F1 of B";
      figures.push(density("F1 against length", rows.map(lengthOf), b.values, "characters of the candidate", name));
    }
    if (!isSingle) {
      figures[0].append(html("p", {}, label(a), label(b)));
      const values = rows.map(difference), better = (sign) => values.filter((d) => sign * d > 0).length;
      const [mean, low, high] = data.differences[state.a][state.b];
      const interval = low === null ? "" : ` (95% interval ${signed(low)} to ${signed(high)})`;
      const pair = [html("bdi", {}, b.name), " minus ", html("bdi", {}, a.name)];
      sentence = html("p", { id: "difference" }, ...pair, ": mean difference of F1 ", html("strong", {}, signed(mean)),
        `${interval}, better in ${better(1)} pairs, worse in ${better(-1)}`);
      figures.push(
        histogram("Difference of F1, B − A", "difference", [{ name: "B − A", values, style: "a" }]),
        density("A against B", a.values, b.values, "F1 of A", "F1 of B", true));
    }
    if (data.isHistory) {
      const means = data.summary.map((one) => one[2]);
      const ends = means.map((one) => one.slice(1));
      figures.unshift(curve("F1 over the training", means.map((one) => one[0] ?? NaN), ends));
    }
    document.getElementById("charts").replaceChildren(sentence, ...figures);
  }

  // A pair.
  function pairOf(system, row) {
    const texts = data.candidates[system], alignment = data.alignments[row]?.[system];
    const numbers = ["P", "R", "F1"].map((label, i) => `${label} ${format(score(system, row, i))}`).join("  ");
    const candidate = texts === null ? "The texts of this validation are not kept." : texts[row];
    const title = isSingle ? numbers : `${data.names[system]}: ${numbers}`;
    const container = drawPair(title, candidate, data.references[row], alignment, lowest);
    if (!alignment && texts !== null) {
      const advice = "This pair has no stored alignment: raise num_alignments, or call bertscore_tm.align.";
      container.append(html("p", {}, html("small", {}, advice)));
    }
    return container;
  }
  function detail(row) {
    const pairs = [...new Set([state.a, state.b])].map((system) => pairOf(system, row));
    const cell = html("td", { colspan: columns().length }, html("div", { class: "systems" }, ...pairs));
    if (data.isHistory && !isSingle) {
      const course = data.names.map((_, system) => score(system, row));
      cell.append(html("div", { class: "charts" }, curve("F1 of this pair over the training", course)));
    }
    return html("tr", { class: "detail" }, cell);
  }

  // The table.
  function select() {
    if (state.filter === "worst") {
      const sorted = finite(rows.map((row) => score(state.b, row))).sort((a, b) => a - b);
      worstLimit = sorted[Math.ceil(sorted.length / 10) - 1];
    }
    let found = rows.filter(FILTERS[state.filter][1]);
    if (state.query) {
      const texts = (row) => [...data.candidates.map((one) => one?.[row] ?? ""), ...data.references[row]];
      searched ??= rows.map((row) => texts(row).join("\n").toLowerCase());
      const query = state.query.toLowerCase();
      found = found.filter((row) => searched[row].includes(query));
    }
    const { value, isText } = COLUMNS.find((column) => column.key === state.sort), sign = state.down ? -1 : 1;
    const keys = rows.map(value);
    const compare = isText ? (a, b) => sign * (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : 0)
      : (a, b) => Number.isNaN(keys[a]) - Number.isNaN(keys[b]) || sign * (keys[a] - keys[b]) || a - b;
    return found.sort(compare);
  }
  function heading(column) {
    const isSorted = state.sort === column.key, arrow = isSorted ? (state.down ? " ▼" : " ▲") : "";
    const id = `sort-${column.key}`, order = isSorted ? (state.down ? "descending" : "ascending") : "none";
    const sort = () => {
      Object.assign(state, { down: isSorted && !state.down, sort: column.key, page: 0 });
      drawTable(id);
    };
    return html("th", { scope: "col", class: classOf(column), "aria-sort": order },
      html("button", { type: "button", id, onclick: sort }, column.label + arrow));
  }
  const classOf = (column) => column.isText && "text";
  const shorten = (text) => (text.length > CHARACTERS_IN_TABLE ? `${text.slice(0, CHARACTERS_IN_TABLE)}…` : text);
  function line(row) {
    const isOpen = opened.has(row), id = `pair-${row + 1}`;
    const toggle = () => { if (!opened.delete(row)) opened.add(row); drawTable(id); };
    const cells = columns().slice(1).map(({ value, isText, show = isText ? shorten : String }) =>
      html("td", { class: classOf({ isText }), dir: isText && "auto" }, show(value(row))));
    const named = { "aria-expanded": String(isOpen), "aria-label": `pair ${row + 1}` };
    const button = html("button", { type: "button", id, ...named }, String(row + 1));
    return html("tr", { class: "row", onclick: toggle }, html("td", {}, button), ...cells);
  }
  function drawTable(focused = null) {
    const found = select(), pages = Math.max(1, Math.ceil(found.length / ROWS_PER_PAGE));
    state.page = Math.min(state.page, pages - 1);
    const shown = found.slice(state.page * ROWS_PER_PAGE, (state.page + 1) * ROWS_PER_PAGE);
    const turn = (id, label, step) => {
      const disabled = state.page + step < 0 || state.page + step >= pages;
      const onclick = () => { state.page += step; drawTable(id); };
      return html("button", { type: "button", id, disabled, onclick }, label);
    };
    const caption = `${found.length} of ${count} pairs, page ${state.page + 1} of ${pages}`;
    document.getElementById("pairs").replaceChildren(
      html("table", { class: "pairs" }, html("caption", { "aria-live": "polite" }, caption),
        html("thead", {}, html("tr", {}, ...columns().map(heading))),
        html("tbody", {}, ...shown.flatMap((row) => (opened.has(row) ? [line(row), detail(row)] : [line(row)])))),
      html("p", { class: "pager", hidden: pages === 1 },
        turn("previous", "Previous", -1), " ", turn("next", "Next", 1)));
    if (focused) document.getElementById(focused)?.focus();
  }
  function controls() {
    const form = document.getElementById("controls");
    const choose = (id, label, options, chosen, act) => html("label", {}, `${label} `,
      html("select", { id, onchange: (event) => { act(event.target.value); state.page = 0; drawTable(); } },
        ...options.map(([value, text]) => html("option", { value, selected: value === chosen }, text))));
    if (!isSingle)
      for (const side of ["a", "b"])
        form.append(choose(side, side.toUpperCase(), data.names.map((name, i) => [i, name]), state[side],
          (value) => { state[side] = Number(value); drawCharts(); }));
    form.append(choose("filter", "show", Object.entries(FILTERS).map(([key, [text]]) => [key, text]), state.filter,
      (value) => { state.filter = value; }));
    let timer = 0;
    const search = (query) => { Object.assign(state, { query, page: 0 }); drawTable(); };
    const oninput = (event) => { clearTimeout(timer); timer = setTimeout(search, 150, event.target.value); };
    const label = "search in texts";
    form.append(html("input", { id: "search", type: "search", placeholder: label, "aria-label": label, oninput }));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = count === 1;
  }

  controls();
  drawCharts();
  drawTable();
  narrow.addEventListener("change", () => drawTable());
  document.body.dataset.ready = "true";
})();
