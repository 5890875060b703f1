// The timeline: lanes of bars that are drawn one by one where they are few, and as cells of a grid where they are many.
// However many bars there are, what is drawn depends on the pixels of the screen.

const FEW = 1200, NUMBERED = 400, WIDE = 6; // bars that are drawn one by one, actions that bear their numbers, pixels that hatches take
const EXPOSED = "exposed ", AXES = ["tp", "cp", "ep", "dp", "pp"];
const axisOf = (event) => (event.startsWith(EXPOSED) ? event.slice(EXPOSED.length) : event);
// Hidden communication is paler than what a rank waits for.
const colourOf = (event) => (AXES.includes(event) ? mix(palette(event), css("--panel"), 0.55) : palette(axisOf(event)));

// Whole numbers from differences of int32 in planes of bytes, compressed, in base 64.
async function unpack(text, count) {
  const bytes = await gunzip(text), numbers = new Float64Array(count);
  let sum = 0;
  for (let i = 0; i < count; i++) {
    sum += bytes[i] | (bytes[count + i] << 8) | (bytes[2 * count + i] << 16) | (bytes[3 * count + i] << 24);
    numbers[i] = sum;
  }
  return numbers;
}

async function gunzip(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Timeline {
  constructor(block) {
    this.block = block;
    this.node = make("div", { class: "plot lanes", tabindex: "0", role: "application", "aria-label": `${block.title}. ${block.alt}` });
    this.legend = make("ul", { class: "legend" });
    this.told = make("p", { class: "readout", "aria-live": "polite" }, "Point at a bar, or step through them with the arrow keys.");
    this.table = make("div", {});
    const button = (label, name, action) => make("button", { type: "button", "aria-label": name, title: name, onclick: action }, label);
    const tools = make("div", { class: "tools" }, button("+", "zoom in", () => this.zoom(0.4)), button("−", "zoom out", () => this.zoom(2.5)),
      button("◀", "earlier", () => this.move(-0.5)), button("▶", "later", () => this.move(0.5)), button("all", "show the whole step", () => this.show(0, this.end)));
    this.figure = make("figure", { class: "chart timeline" }, make("figcaption", {}, make("h3", {}, block.title), make("p", { class: "quiet" }, block.alt),
      block.left_out ? make("p", { class: "quiet" }, block.left_out) : null), tools, this.legend, this.node, this.told,
      make("details", {}, make("summary", {}, "These numbers as a table"), this.table));
    this.end = block.end_s / block.unit_s;
    this.from = 0;
    this.to = this.end;
    this.at = -1;
    this.range = null; // of lanes that are in view; all by default
  }

  async load() {
    const { columns, count, names } = this.block;
    for (const name of Object.keys(columns)) this[name] = await unpack(columns[name], count);
    this.first = new Int32Array(names.length + 1).fill(count);
    for (let i = count - 1; i >= 0; i--) this.first[this.lane[i]] = i;
    for (let lane = names.length - 1; lane >= 0; lane--) this.first[lane] = Math.min(this.first[lane], this.first[lane + 1]);
    [this.word, this.scale] = rung(this.block.end_s, "s");
    this.tell = this.block.end_s / this.scale / this.end; // of a unit, in what the axis shows
    this.chunks = 1;
    for (let i = 0; i < count; i++) if (this.chunk[i] >= this.chunks) this.chunks = this.chunk[i] + 1;
    this.reach = new Float64Array(count); // of what began before: bars of a lane may overlap
    for (let i = 0; i < count; i++) {
      const end = this.start[i] + this.length[i];
      this.reach[i] = i > this.first[this.lane[i]] ? Math.max(this.reach[i - 1], end) : end;
    }
    this.fill();
    await this.draw();
    this.node.on("plotly_relayout", (change) => this.relaid(change));
    this.node.on("plotly_hover", (event) => this.hovered(event.points[0]));
    this.node.addEventListener("keydown", (event) => this.pressed(event));
  }

  // Rows of the table: what each lane does.
  fill() {
    const rows = this.block.names.map((name, lane) => {
      let busy = 0;
      for (let i = this.first[lane]; i < this.first[lane + 1]; i++) busy += this.length[i];
      return [name, this.first[lane + 1] - this.first[lane], busy * this.block.unit_s, busy / this.end];
    });
    this.table.append(makeTable([{ name: "lane", unit: "" }, { name: "bars", unit: "count" }, { name: "busy", unit: "s" }, { name: "of the step", unit: "share" }], rows, "Lanes"));
  }

  // The first bar of a lane that ends after `time`.
  after(lane, time) {
    let low = this.first[lane], high = this.first[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reach[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  visible() {
    const [top, bottom] = this.range || [0, this.block.names.length - 1];
    const bars = [];
    let count = 0;
    for (let lane = Math.max(0, Math.floor(top)); lane <= Math.min(this.block.names.length - 1, Math.ceil(bottom)); lane++) {
      const since = this.after(lane, this.from);
      let until = since;
      while (until < this.first[lane + 1] && this.start[until] < this.to) until++;
      bars.push([lane, since, until]);
      count += until - since;
    }
    return [bars, count];
  }

  traces() {
    const [lanes, count] = this.visible();
    return count <= FEW ? this.single(lanes) : this.grid(lanes);
  }

  // Every bar by itself, hatched where it is communication.
  single(lanes) {
    const { events } = this.block, panel = css("--panel");
    const pixel = (this.to - this.from) / (this.node.clientWidth || 900);
    const by = new Map();
    for (const [lane, since, until] of lanes) for (let i = since; i < until; i++) {
      const event = this.event[i];
      if (!by.has(event)) by.set(event, { base: [], x: [], y: [], text: [], customdata: [], colours: [], hatches: [] });
      const trace = by.get(event);
      trace.base.push(this.start[i] * this.tell);
      trace.x.push(this.length[i] * this.tell);
      trace.y.push(lane);
      trace.text.push(this.microbatch[i] >= 0 ? String(this.microbatch[i]) : "");
      trace.customdata.push(i);
      trace.hatches.push(this.length[i] > WIDE * pixel ? "/" : "");
      trace.colours.push(this.chunk[i] > 0 ? mix(palette(events[event]), panel, (0.5 * this.chunk[i]) / (this.chunks - 1)) : colourOf(events[event]));
    }
    this.seen = [...by.keys()];
    const actions = [...by].reduce((sum, [event, trace]) => sum + (AXES.includes(axisOf(events[event])) ? 0 : trace.y.length), 0);
    return [...by].sort((a, b) => a[0] - b[0]).map(([event, trace]) => {
      const hatched = events[event].startsWith(EXPOSED), moves = AXES.includes(axisOf(events[event]));
      return {
        type: "bar", orientation: "h", base: trace.base, x: trace.x, y: trace.y, width: moves ? 0.6 : 0.86,
        customdata: trace.customdata, text: actions <= NUMBERED && !moves ? trace.text : undefined, textposition: "inside", insidetextanchor: "middle", textangle: 0,
        marker: { color: trace.colours, line: { width: moves ? 0 : 0.5, color: panel }, pattern: hatched ? { shape: trace.hatches, size: 5, solidity: 0.25, fgcolor: panel, fillmode: "overlay" } : undefined },
        hoverinfo: "none",
      };
    });
  }

  // One cell a pixel. Where several kinds share pixels, each gets as many of them as it has of the time: what a pixel does not
  // show of a kind is carried to the next.
  grid(lanes) {
    const { events } = this.block, kinds = events.length;
    const columns = Math.max(200, Math.min(1600, Math.round(this.node.clientWidth || 900)));
    const cell = (this.to - this.from) / columns, z = [], y = [];
    for (const [lane, since, until] of lanes) {
      const cover = new Float32Array(columns * kinds);
      for (let i = since; i < until; i++) {
        const start = (this.start[i] - this.from) / cell, end = start + this.length[i] / cell;
        const last = Math.min(columns - 1, Math.floor(end));
        for (let k = Math.max(0, Math.floor(start)); k <= last; k++) cover[k * kinds + this.event[i]] += Math.min(end, k + 1) - Math.max(start, k);
      }
      const row = new Array(columns).fill(null), owed = new Float64Array(kinds + 1);
      for (let k = 0; k < columns; k++) {
        let sum = 0, best = kinds;
        for (let kind = 0; kind < kinds; kind++) {
          owed[kind] += cover[k * kinds + kind];
          sum += cover[k * kinds + kind];
        }
        owed[kinds] += Math.max(0, 1 - sum); // idle
        for (let kind = 0; kind < kinds; kind++) if (cover[k * kinds + kind] > 0 && owed[kind] > owed[best]) best = kind;
        owed[best] -= 1;
        if (best < kinds) row[k] = best;
        if (sum > 0.999 && best === kinds) row[k] = this.most(cover, k * kinds, kinds);
      }
      z.push(row);
      y.push(lane);
    }
    const colours = events.flatMap((event, i) => [[i / kinds, colourOf(event)], [(i + 1) / kinds, colourOf(event)]]);
    this.seen = [...new Set(z.flat().filter((kind) => kind !== null))];
    return [{ type: "heatmap", z, y, x0: (this.from + cell / 2) * this.tell, dx: cell * this.tell, zmin: -0.5, zmax: kinds - 0.5, colorscale: colours, showscale: false, hoverinfo: "none", ygap: lanes.length < 80 ? 1 : 0, name: "" }];
  }

  // The kind that covers most of a cell.
  most(cover, from, kinds) {
    let best = 0;
    for (let kind = 1; kind < kinds; kind++) if (cover[from + kind] > cover[from + best]) best = kind;
    return best;
  }

  label(event) {
    const axis = axisOf(event), words = DOCUMENT.palette.labels[axis] || axis.replace("_", " ");
    return event === axis ? (AXES.includes(axis) ? `${words}, hidden` : words) : `${words}, exposed`;
  }

  draw() {
    const { names } = this.block, rows = names.length, [top, bottom] = this.range || [-0.5, rows - 0.5];
    const all = names.map((name, i) => i), room = narrow() ? 24 : 48;
    const ranks = all.filter((i) => !AXES.includes(names[i].split(" ").pop())); // lanes of actions, named where there is no room for all
    const shown = bottom - top <= room ? all : ranks, step = Math.ceil((shown.length * (bottom - top)) / rows / room);
    const ticks = shown.filter((lane, i) => i % step === 0);
    const form = layout({
      barmode: "overlay", height: 110 + Math.max(80, Math.min(rows * 20, 760)), margin: { l: 8, r: 16, t: 8, b: 40 },
      uniformtext: { mode: "hide", minsize: 8 }, shapes: this.mark(),
      xaxis: { title: { text: `time (${this.word})` }, range: [this.from * this.tell, this.to * this.tell], showgrid: false },
      yaxis: { range: [bottom, top], tickvals: ticks, ticktext: ticks.map((i) => literal(cut(names[i]))), showgrid: false, zeroline: false, fixedrange: rows <= 24 || narrow() },
    });
    const traces = this.traces();
    fillLegend(this.legend, this.seen.sort((a, b) => a - b).map((kind) => {
      const event = this.block.events[kind];
      return { name: this.label(event), colour: colourOf(event), hatched: event.startsWith(EXPOSED) };
    }));
    if (this.chunks > 1) this.legend.append(make("li", {}, "paler actions: later chunks of a rank"));
    return Plotly.react(this.node, traces, form, CONFIG);
  }

  // A frame around the bar that the keys stand on.
  mark() {
    if (this.at < 0) return [];
    const lane = this.lane[this.at], start = this.start[this.at];
    return [{ type: "rect", x0: start * this.tell, x1: (start + this.length[this.at]) * this.tell, y0: lane - 0.5, y1: lane + 0.5, line: { color: css("--text"), width: 2 } }];
  }

  show(from, to) {
    const width = Math.min(Math.max(to - from, 10), this.end);
    this.from = Math.min(Math.max(0, from), this.end - width);
    this.to = this.from + width;
    if (width >= this.end) this.range = null;
    return this.draw();
  }
  zoom(factor) {
    const at = this.at >= 0 && this.start[this.at] >= this.from && this.start[this.at] <= this.to ? this.start[this.at] + this.length[this.at] / 2 : (this.from + this.to) / 2;
    return this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  move(share) {
    const by = share * (this.to - this.from);
    return this.show(this.from + by, this.to + by);
  }

  relaid(change) {
    if (change["xaxis.autorange"] || change["yaxis.autorange"]) { this.range = null; this.show(0, this.end); return; }
    if (change["yaxis.range[0]"] !== undefined) this.range = [Math.max(-0.5, change["yaxis.range[1]"]), Math.min(this.block.names.length - 0.5, change["yaxis.range[0]"])];
    if (change["xaxis.range[0]"] !== undefined) this.show(change["xaxis.range[0]"] / this.tell, change["xaxis.range[1]"] / this.tell);
    else if (this.range) this.draw();
  }

  hovered(point) {
    const i = point.customdata !== undefined && point.data.type === "bar" ? point.customdata : this.nearest(point.y, point.x / this.tell);
    if (i >= 0) this.say(i);
  }
  nearest(lane, time) {
    const i = this.after(lane, time);
    return i < this.first[lane + 1] && this.start[i] <= time + (this.to - this.from) / 500 ? i : -1;
  }
  say(i) {
    const event = this.block.events[this.event[i]], unit = this.block.unit_s;
    const word = this.word[i] >= 0 ? ` ${this.block.words[this.word[i]]}` : "", layer = this.layer[i] >= 0 ? ` in layer ${this.layer[i]} of the stage` : "";
    const of = this.microbatch[i] >= 0 ? ` of microbatch ${this.microbatch[i]}` : "", chunk = this.chunks > 1 && this.chunk[i] >= 0 ? `, chunk ${this.chunk[i]}` : "";
    this.told.textContent = `${this.block.names[this.lane[i]]}: ${event.replaceAll("_", " ")}${word}${of}${chunk}${layer}, ${format(this.length[i] * unit, "s")} from ${format(this.start[i] * unit, "s")} to ${format((this.start[i] + this.length[i]) * unit, "s")}`;
  }

  pressed(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 }, lanes = { ArrowDown: 1, ArrowUp: -1 };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in steps) this.step(steps[event.key]);
    else if (event.key in lanes) this.change(lanes[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.4);
    else if (event.key === "-") this.zoom(2.5);
    else if (event.key === "Home") this.show(0, this.end);
    else return;
    event.preventDefault();
  }
  step(by) {
    this.stand(this.at < 0 ? 0 : Math.min(this.block.count - 1, Math.max(0, this.at + by)));
  }
  change(by) {
    const lane = this.at < 0 ? 0 : Math.min(this.block.names.length - 1, Math.max(0, this.lane[this.at] + by));
    const time = this.at < 0 ? 0 : this.start[this.at];
    this.stand(Math.min(this.after(lane, time), this.first[lane + 1] - 1));
  }
  stand(i) {
    this.at = i;
    this.say(i);
    const width = this.to - this.from;
    if (this.start[i] < this.from || this.start[i] + this.length[i] > this.to) this.show(this.start[i] - width / 3, this.start[i] + (2 * width) / 3);
    else Plotly.relayout(this.node, { shapes: this.mark() });
  }
}

// A colour on its way to another.
function mix(from, to, share) {
  const read = (colour) => (colour[0] === "#" ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : colour.match(/\d+/g).map(Number));
  const [a, b] = [read(from), read(to)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * share)).join(",")})`;
}
