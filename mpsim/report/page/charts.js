// Charts: what their drawings say under the pointer, and zooming along time. The drawings are in the page already.

const dark = () => document.documentElement.dataset.theme === "dark";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rule = (word) => `--${(DOCUMENT.palette.colours[word] ? word : "other").replaceAll(/[._]/g, "-")}`;

// The block that a figure shows.
function blockOf(figure) {
  const [name, place] = figure.dataset.block.split("/");
  for (const part of [{ id: "shared", sections: DOCUMENT.shared }, ...DOCUMENT.parts])
    for (const section of part.sections) if (`${part.id}-${section.id}` === name) return section.blocks[Number(place)];
  return null;
}

// The number at a place along an axis, in SI, and the place of a number.
const inverse = ([start, end, low, high, log, size], at) => {
  const share = (at - start) / (end - start);
  return size * (log ? low * (high / low) ** share : low + share * (high - low));
};
const placed = ([start, end, low, high, log, size], value) => {
  const own = value / size;
  return start + (end - start) * (log ? Math.log(own / low) / Math.log(high / low) : (own - low) / (high - low));
};
// The last place in a list that ascends whose number is not above `value`.
const before = (list, value) => Math.max(0, list.reduce((last, own, i) => (own <= value ? i : last), 0));

// What to say of a place in a chart.
const TELL = {
  bars(block, x, y) {
    const bar = Math.floor(y), unit = block.value.unit || "";
    const sums = { 1: 0, "-1": 0 };
    for (const part of block.parts) {
      const own = part.values[bar], side = Math.sign(own);
      if (side && Math.abs((sums[side] += own)) >= Math.abs(x) && side === Math.sign(x)) return `${block.names[bar]}\n${part.name} ${format(own, unit)}`;
    }
    return "";
  },
  heat(block, x, y) {
    const row = Math.floor(y), column = before(block.edges, x);
    return `${block.names[row]}\n${format(block.values[row][column], block.z.unit || "")} at ${format(x, block.x.unit || "")}`;
  },
  lines(block, x, y, frame) {
    const [xUnit, yUnit] = [block.x.unit || "", block.y.unit || ""];
    let nearest = null, least = 400; // of squared units
    for (const series of block.series) if (series.mark) series.x.forEach((own, i) => {
      const far = (placed(frame.x, own) - placed(frame.x, x)) ** 2 + (placed(frame.y, series.y[i]) - placed(frame.y, y)) ** 2;
      if (far < least) [least, nearest] = [far, [series, i]];
    });
    if (nearest) {
      const [series, i] = nearest;
      return `${series.labels ? series.labels[i] : series.name}\n${block.x.name} ${format(series.x[i], xUnit)}\n${block.y.name} ${format(series.y[i], yUnit)}`;
    }
    if (block.series.some((series) => series.mark)) return "";
    const values = block.series.map((series) => `${series.name} ${format(series.y[before(series.x, x)], yUnit)}`);
    return [`${block.x.name} ${format(x, xUnit)}`, ...values.slice(0, 10)].join("\n");
  },
};

// Round numbers along a stretch of an axis.
function ticks(low, high, most) {
  const width = (high - low) / most, power = 10 ** Math.floor(Math.log10(width));
  const step = [1, 2, 5, 10].map((mark) => mark * power).find((own) => own >= width * 0.999);
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) marks.push(i * step);
  return marks;
}

function drawn(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Hover, and where time runs along the chart a drag that zooms; a double click shows all again.
function enliven(figure, block) {
  const plot = figure.querySelector(".plot"), svg = plot.querySelector("svg"), area = svg.querySelector(".area");
  const frame = JSON.parse(svg.dataset.frame), [start, end] = frame.x, width = svg.viewBox.baseVal.width;
  const top = Math.min(frame.y[0], frame.y[1]), low = Math.max(frame.y[0], frame.y[1]);
  const tip = plot.appendChild(make("div", { class: "tip", hidden: true }));
  let view = [start, end], held = null, box = null;
  const at = (event) => {
    const rect = svg.getBoundingClientRect(), scale = width / rect.width;
    return [(event.clientX - rect.left) * scale, (event.clientY - rect.top) * scale, event.clientX - plot.getBoundingClientRect().left + plot.scrollLeft];
  };
  const inner = (x) => view[0] + ((x - start) / (end - start)) * (view[1] - view[0]);
  const show = (from, to) => {
    view = [from, to];
    area.setAttribute("viewBox", `${from} ${top} ${to - from} ${low - top}`);
    const size = frame.x[5], [first, last] = view.map((place) => inverse(frame.x, place) / size);
    svg.querySelector(".ticks").replaceChildren(...ticks(first, last, 8).flatMap((tick) => {
      const x = start + ((placed(frame.x, tick * size) - from) / (to - from)) * (end - start);
      return [drawn("path", { d: `M${x} ${top}V${low}`, class: "grid" }), drawn("text", { x, y: low + 16, "text-anchor": "middle" }, digits(tick, 6))];
    }));
  };
  svg.addEventListener("pointermove", (event) => {
    const [x, y, left] = at(event), inside = x >= start && x <= end && y >= top && y < low;
    if (box) { box.setAttribute("x", Math.min(x, held)); box.setAttribute("width", Math.abs(x - held)); }
    const said = inside ? TELL[block.block](block, inverse(frame.x, inner(x)), inverse(frame.y, y), frame) : "";
    tip.hidden = !said;
    tip.textContent = said;
    if (said) { tip.style.left = `${Math.min(left + 14, plot.scrollWidth - tip.offsetWidth - 4)}px`; tip.style.top = `${(y / width) * svg.clientWidth + 12}px`; }
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  if (!frame.zoom) return;
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") return;
    [held] = at(event);
    box = svg.appendChild(drawn("rect", { x: held, y: top, width: 0, height: low - top, class: "select" }));
    event.preventDefault();
  });
  window.addEventListener("pointerup", (event) => {
    if (!box) return;
    const [x] = at(event), [from, to] = [Math.min(x, held), Math.max(x, held)].map((place) => Math.min(end, Math.max(start, place)));
    box.remove();
    box = null;
    if (to - from > 8) show(inner(from), inner(to));
  });
  svg.addEventListener("dblclick", () => show(start, end));
}

// The legend of what a script draws.
function fillLegend(node, entries) {
  node.replaceChildren(...(entries.length > 1 ? entries : []).map((entry) => {
    const swatch = make("span", { class: `swatch${entry.hatched ? " hatched" : ""}`, "aria-hidden": "true" });
    swatch.style.setProperty("--swatch", entry.colour);
    return make("li", {}, swatch, entry.name);
  }));
}

const TIMELINES = [];

// Give life to the figures of a part of the page.
async function enlivenAll(root) {
  TIMELINES.length = 0;
  for (const figure of root.querySelectorAll("figure[data-block]")) {
    const block = blockOf(figure);
    if (block.block === "choices") fillChoices(figure, block);
    else if (block.block === "timeline") TIMELINES.push(new Timeline(figure, block));
    else enliven(figure, block);
  }
  if (typeof DecompressionStream !== "undefined") for (const timeline of TIMELINES) await timeline.load();
  document.documentElement.dataset.drawn = "yes";
}
