// Charts: blocks of the document drawn by plotly, each with its table.

const dark = () => document.documentElement.dataset.theme === "dark";
const shade = (pair) => pair[dark() ? 1 : 0];
const palette = (word) => shade(DOCUMENT.palette.colours[word] || DOCUMENT.palette.colours.other);
const nth = (i) => shade(DOCUMENT.palette.series[i % DOCUMENT.palette.series.length]);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 640;

const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: false };
const MARKS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const longest = () => (narrow() ? 20 : 34); // letters of a name beside a chart

const cut = (name) => (name.length > longest() ? `${name.slice(0, longest() - 1)}…` : name);
// plotly reads a little markup in its texts: names are text
const literal = (name) => String(name).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function layout(more) {
  const line = css("--line"), text = css("--text");
  const axis = (own) => ({ gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true, ...own });
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: text },
    margin: { l: 8, r: 16, t: 8, b: 40 },
    showlegend: false,
    hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: text } },
    dragmode: narrow() ? false : "zoom",
    ...rest,
    xaxis: axis({ fixedrange: narrow(), ...xaxis }),
    yaxis: axis({ fixedrange: true, ...yaxis }),
  };
}

// Divides values so that the axis reads in one unit.
function scaleOf(values, unit) {
  let most = 0;
  for (const value of values) if (Math.abs(value) > most) most = Math.abs(value);
  if (unit === "share") return ["%", 0.01];
  return rung(most, unit);
}
const named = (column, unit) => (unit ? `${column} (${unit})` : column);
const every = (lists) => lists.reduce((all, list) => all.concat(Array.from(list)), []);

// The legend of a chart as a list, which wraps as text does; of one kind there is nothing to tell apart.
function fillLegend(node, entries) {
  node.replaceChildren(...(entries.length > 1 || entries.some((entry) => entry.line === "limit") ? entries : []).map((entry) => {
    const swatch = make("span", { class: `swatch ${entry.line || "fill"}${entry.hatched ? " hatched" : ""}`, "aria-hidden": "true" });
    swatch.style.setProperty("--swatch", entry.colour);
    return make("li", {}, swatch, entry.name);
  }));
}

function limitOf(limit, scale, vertical) {
  if (!limit) return {};
  const colour = css("--warning"), value = limit.value / scale;
  const line = { type: "line", line: { color: colour, width: 2, dash: "dash" } };
  return vertical
    ? { shapes: [{ ...line, x0: value, x1: value, yref: "paper", y0: 0, y1: 1 }],
      }
    : { shapes: [{ ...line, xref: "paper", x0: 0, x1: 1, y0: value, y1: value }], };
}

const CHARTS = {
  bars(block) {
    const [unit, scale] = scaleOf(every(block.parts.map((part) => part.values)), block.unit);
    const names = block.names.map((name, i) => i);
    const traces = block.parts.map((part, i) => ({
      type: "bar", orientation: "h", name: literal(part.name), y: names, x: part.values.map((value) => value / scale),
      customdata: part.values.map((value) => format(value, block.unit)), text: block.names.map(literal),
      textposition: "none", hovertemplate: `%{text}<br>${literal(part.name)} %{customdata}<extra></extra>`,
      marker: {
        color: part.colour ? palette(part.colour) : nth(i), line: { color: css("--panel"), width: block.names.length > 40 ? 0 : 0.5 },
        pattern: part.hatched ? { shape: "/", size: 6, solidity: 0.25, fgcolor: css("--panel"), fillmode: "overlay" } : undefined,
      },
    }));
    const rows = block.names.length, step = Math.ceil(rows / 32);
    const ticks = names.filter((i) => i % step === 0);
    return [traces, layout({
      barmode: "relative", bargap: rows > 40 ? 0 : 0.15, height: 66 + Math.max(50, Math.min(rows * 26, 620)),
      xaxis: { title: { text: named(block.axis, unit) } }, ...limitOf(block.limit, scale, true),
      yaxis: { autorange: "reversed", zeroline: false, tickvals: ticks, ticktext: ticks.map((i) => literal(cut(block.names[i]))), showgrid: false },
    })];
  },

  lines(block) {
    const limits = block.limit ? [block.limit.value] : [];
    const [yUnit, yScale] = scaleOf(every([...block.series.map((series) => series.y), limits]), block.y.unit);
    const [xUnit, xScale] = scaleOf(every(block.series.map((series) => series.x.slice(-1))), block.x.unit);
    const traces = block.series.map((series, i) => {
      const colour = series.colour ? palette(series.colour) : nth(i);
      return {
        type: "scatter", mode: "lines", name: literal(series.name), x: series.x.map((value) => value / xScale), y: series.y.map((value) => value / yScale),
        line: { color: colour, width: block.stacked ? 0.5 : 1.8, shape: series.step ? "hv" : "linear", dash: block.stacked ? "solid" : DASHES[i % DASHES.length] },
        ...(block.stacked ? { stackgroup: "all", fillcolor: colour } : {}),
        hovertemplate: `${literal(series.name)}: %{y:.4g} ${literal(yUnit)} at %{x:.5g} ${literal(xUnit)}<extra></extra>`,
      };
    });
    return [traces, layout({
      height: 330,
      xaxis: { title: { text: named(block.x.name, xUnit) }, type: block.log_x ? "log" : "linear", ...(block.log_x ? decades(every(block.series.map((series) => series.x))) : {}) },
      yaxis: { title: { text: named(block.y.name, yUnit) }, rangemode: "tozero" }, ...limitOf(block.limit, yScale, false),
    })];
  },

  heat(block) {
    const [xUnit, xScale] = scaleOf(block.edges, block.x.unit);
    const [zUnit, zScale] = scaleOf(every(block.values), block.z.unit);
    const rows = block.names.length, step = Math.ceil(rows / 40);
    // small loads must be seen beside large ones: what is not nothing is never of the colour of nothing
    const shades = dark() ? ["#1d3448", "#2a587d", "#4f9fd6", "#ffe08a"] : ["#e3f0fa", "#a9d0ea", "#3d8ac0", "#08304f"];
    const trace = {
      type: "heatmap", x: block.edges.map((value) => value / xScale), y: block.names.map((name, i) => i),
      z: block.values.map((row) => row.map((value) => value / zScale)), zmin: 0,
      colorscale: [[0, css("--panel")], [0.001, shades[0]], [0.1, shades[1]], [0.5, shades[2]], [1, shades[3]]],
      colorbar: { title: { text: zUnit, side: "top" }, thickness: 12, outlinewidth: 0 },
      zmax: block.z.unit === "share" ? Math.max(100, ...block.values.map((row) => 100 * Math.max(...row))) : undefined,
      customdata: block.values.map((row, i) => row.map(() => literal(block.names[i]))),
      hovertemplate: `%{customdata}: %{z:.3g} ${literal(zUnit)} at %{x:.4g} ${literal(xUnit)}<extra></extra>`,
    };
    const ticks = block.names.map((name, i) => i).filter((i) => i % step === 0);
    return [[trace], layout({
      height: 110 + Math.max(60, Math.min(rows * 18, 640)), xaxis: { title: { text: named(block.x.name, xUnit) }, showgrid: false },
      yaxis: { autorange: "reversed", zeroline: false, tickvals: ticks, ticktext: ticks.map((i) => literal(cut(block.names[i]))), showgrid: false },
    })];
  },

  scatter(block) {
    const groups = Object.entries(block.groups);
    const points = groups.flatMap(([, list]) => list);
    const along = (k, column) => scaleOf([...points.map((point) => point[k]), ...every(block.lines.map((line) => (k === 1 ? line.x : line.y)))], column.unit);
    const [xUnit, xScale] = along(1, block.x), [yUnit, yScale] = along(2, block.y);
    const lines = block.lines.map((line, i) => ({
      type: "scatter", mode: "lines", name: literal(line.name), x: line.x.map((value) => value / xScale), y: line.y.map((value) => value / yScale),
      line: { color: line.colour ? palette(line.colour) : css("--quiet"), width: 1.5, dash: DASHES[i % DASHES.length] }, hoverinfo: "skip",
    }));
    const labelled = apart(points, points.filter((point) => block.labelled.includes(point[0])), block.log);
    const marks = groups.map(([group, list], i) => ({
      type: "scatter", mode: block.labelled.length && !narrow() ? "markers+text" : "markers", name: literal(group),
      x: list.map((point) => point[1] / xScale), y: list.map((point) => point[2] / yScale), text: list.map((point) => (labelled.has(point) ? literal(cut(point[0])) : "")),
      textposition: "top center", textfont: { size: 10 }, customdata: list.map((point) => literal(point[0])),
      marker: { color: nth(i), symbol: `${MARKS[i % MARKS.length]}${block.log ? "-open" : ""}`, size: block.log ? Math.max(6, 15 - 3 * i) : 10, line: { color: block.log ? nth(i) : css("--panel"), width: block.log ? 2 : 1 } }, cliponaxis: false,
      hovertemplate: `%{customdata}<br>${literal(block.x.name)} %{x:.4g} ${literal(xUnit)}<br>${literal(block.y.name)} %{y:.4g} ${literal(yUnit)}<extra></extra>`,
    }));
    const type = block.log ? "log" : "linear";
    return [[...lines, ...marks], layout({
      height: 420,
      xaxis: { title: { text: named(block.x.name, xUnit) }, type, ...(block.log ? decades(points.map((point) => point[1])) : {}) },
      yaxis: { title: { text: named(block.y.name, yUnit) }, type, ...(block.log ? decades(points.map((point) => point[2])) : {}) },
    })];
  },
};

// Marks of a logarithmic axis at 1, 2 and 5, or at more where it spans little.
function decades(shown) {
  const values = [], positive = shown.filter((value) => value > 0);
  const marks = Math.max(...positive) < 10 * Math.min(...positive) ? [1, 1.5, 2, 3, 4, 5, 7] : [1, 2, 5];
  for (let power = -12; power <= 21; power++) for (const digit of marks) values.push(digit * 10 ** power);
  return { tickvals: values, ticktext: values.map((value) => digits(value, 3)) };
}

// Some of the chosen points, of which no two are so close that their names would cover each other.
function apart(points, chosen, log) {
  const place = (value) => (log ? Math.log10(Math.max(value, 1e-30)) : value);
  const span = (k) => Math.max(...points.map((point) => place(point[k]))) - Math.min(...points.map((point) => place(point[k]))) || 1;
  const wide = span(1), high = span(2), kept = new Set();
  for (const point of chosen) {
    const free = [...kept].every((other) => Math.abs(place(point[1]) - place(other[1])) > 0.3 * wide || Math.abs(place(point[2]) - place(other[2])) > 0.08 * high);
    if (free) kept.add(point);
  }
  return kept;
}

// The same numbers as rows.
const TABLES = {
  bars: (block) => [
    [{ name: "", unit: "" }, ...block.parts.map((part) => ({ name: part.name, unit: block.unit || "1" }))],
    block.names.map((name, i) => [name, ...block.parts.map((part) => part.values[i])]),
  ],
  lines: (block) => [
    [{ name: "series", unit: "" }, block.x, block.y],
    block.series.flatMap((series) => thinned(series.x, 60).map((i) => [series.name, series.x[i], series.y[i]])),
  ],
  heat: (block) => [
    [{ name: "", unit: "" }, { name: "mean", unit: block.z.unit }, { name: "most", unit: block.z.unit }],
    block.names.map((name, i) => {
      const row = block.values[i], width = (j) => block.edges[j + 1] - block.edges[j];
      const whole = block.edges[block.edges.length - 1] - block.edges[0];
      return [name, row.reduce((sum, value, j) => sum + value * width(j), 0) / (whole || 1), Math.max(...row)];
    }),
  ],
  scatter: (block) => [
    [{ name: "point", unit: "" }, { name: "group", unit: "" }, block.x, block.y],
    Object.entries(block.groups).flatMap(([group, list]) => list.map((point) => [point[0], group, point[1], point[2]])),
  ],
};
function thinned(list, most) {
  const step = Math.max(1, Math.ceil(list.length / most));
  return list.map((value, i) => i).filter((i) => i % step === 0 || i === list.length - 1);
}

// What the legend of each kind of chart says.
const LEGENDS = {
  bars: (block) => block.parts.map((part, i) => ({ name: part.name, colour: part.colour ? palette(part.colour) : nth(i), hatched: part.hatched })).concat(limitEntry(block)),
  lines: (block) => block.series.map((series, i) => ({
    name: series.name, colour: series.colour ? palette(series.colour) : nth(i), line: block.stacked ? "" : DASHES[i % DASHES.length],
  })).concat(limitEntry(block)),
  heat: () => [],
  scatter: (block) => block.lines.map((line, i) => ({ name: line.name, colour: line.colour ? palette(line.colour) : css("--quiet"), line: DASHES[i % DASHES.length] }))
    .concat(Object.keys(block.groups).map((name, i) => ({ name, colour: nth(i), line: MARKS[i % MARKS.length] }))),
};
const limitEntry = (block) => (block.limit ? [{ name: block.limit.label, colour: css("--warning"), line: "limit" }] : []);

const DRAWN = []; // [node, function that draws it again]

// A figure: title, one sentence, the drawing, its table.
function makeChart(block) {
  const plot = make("div", { class: "plot", role: "img", "aria-label": `${block.title}. ${block.alt}` });
  const legend = make("ul", { class: "legend" });
  const [columns, rows] = TABLES[block.block](block);
  const figure = make("figure", { class: `chart ${block.block}` }, make("figcaption", {}, make("h3", {}, block.title), make("p", { class: "quiet" }, block.alt)),
    legend, plot, make("details", {}, make("summary", {}, "These numbers as a table"), makeTable(columns, rows, block.title)));
  DRAWN.push([plot, () => { fillLegend(legend, LEGENDS[block.block](block)); const [traces, form] = CHARTS[block.block](block); return Plotly.react(plot, traces, form, CONFIG); }]);
  return figure;
}
