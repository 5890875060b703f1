// The timeline: lanes of bars that are drawn one by one where they are few, and as cells of a grid where they are many.
// However many bars there are, what is drawn depends on the pixels of the screen.

const FEW = 1200, WIDE = 6; // bars that are drawn one by one, pixels that hatches take
const EXPOSED = "exposed ";
const isAxis = (event) => DOCUMENT.palette.axes.includes(event);
const axisOf = (event) => (event.startsWith(EXPOSED) ? event.slice(EXPOSED.length) : event);
// Hidden communication is paler than what a rank waits for.
const colourOf = (event) => (isAxis(event) ? mix(css(rule(event)), css("--panel"), 0.55) : css(rule(axisOf(event))));

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
  constructor(figure, block) {
    this.block = block;
    this.node = figure.querySelector(".lanes");
    this.legend = figure.querySelector(".legend");
    this.told = figure.querySelector(".readout");
    const actions = { "zoom in": () => this.zoom(0.4), "zoom out": () => this.zoom(2.5), earlier: () => this.move(-0.5), later: () => this.move(0.5), "show the whole step": () => this.show(0, this.end) };
    for (const button of figure.querySelectorAll(".tools button")) button.onclick = actions[button.title];
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
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.node.replaceChildren(this.canvas);
    this.node.addEventListener("keydown", (event) => this.pressed(event));
    this.listen();
    this.draw();
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
    const [top, bottom] = this.range || [0, this.block.names.length];
    const bars = [];
    let count = 0;
    for (let lane = top; lane < bottom; lane++) {
      const since = this.after(lane, this.from);
      let until = since;
      while (until < this.first[lane + 1] && this.start[until] < this.to) until++;
      bars.push([lane, since, until]);
      count += until - since;
    }
    return [bars, count];
  }


  // Every bar by itself, hatched where it is communication that its rank waits for.
  single(pen, lanes, { x, y, row }) {
    const { events } = this.block, panel = css("--panel"), seen = new Set();
    const actions = lanes.reduce((sum, [, since, until]) => sum + until - since, 0);
    pen.font = "10px system-ui, sans-serif";
    pen.textAlign = "center";
    for (const [lane, since, until] of lanes) for (let i = since; i < until; i++) {
      const event = events[this.event[i]], moves = isAxis(axisOf(event)), high = (moves ? 0.6 : 0.86) * row;
      const left = x(Math.max(this.start[i], this.from)), wide = Math.max(0.5, x(Math.min(this.start[i] + this.length[i], this.to)) - left), top = y(lane) + (row - high) / 2;
      seen.add(this.event[i]);
      pen.fillStyle = this.chunk[i] > 0 ? mix(css(rule(event)), panel, (0.5 * this.chunk[i]) / (this.chunks - 1)) : colourOf(event);
      pen.fillRect(left, top, Math.max(0.5, wide - (moves ? 0 : 0.5)), high);
      if (event.startsWith(EXPOSED) && wide > WIDE) { pen.fillStyle = this.hatch(pen, panel); pen.fillRect(left, top, wide, high); }
      const word = this.microbatch[i] >= 0 && !moves && actions <= FEW ? String(this.microbatch[i]) : "";
      if (word && wide > 7 * word.length + 2 && row > 11) { pen.fillStyle = readable(pen.fillStyle); pen.fillText(word, left + wide / 2, top + high / 2 + 3.5); }
    }
    return seen;
  }

  hatch(pen, colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const own = tile.getContext("2d");
    own.strokeStyle = colour;
    own.lineWidth = 1.3;
    own.beginPath();
    for (const shift of [-6, 0, 6]) { own.moveTo(shift, 6); own.lineTo(shift + 6, 0); }
    own.stroke();
    return pen.createPattern(tile, "repeat");
  }

  // One cell a pixel. Where several kinds share pixels, each gets as many of them as it has of the time: what a pixel does not
  // show of a kind is carried to the next.
  grid(pen, lanes, { left, wide, y, row }) {
    const { events } = this.block, kinds = events.length, columns = Math.max(1, Math.round(wide));
    const cell = (this.to - this.from) / columns, seen = new Set(), colours = events.map(colourOf);
    for (const [lane, since, until] of lanes) {
      const cover = new Float32Array(columns * kinds);
      for (let i = since; i < until; i++) {
        const start = (this.start[i] - this.from) / cell, end = start + this.length[i] / cell;
        const last = Math.min(columns - 1, Math.floor(end));
        for (let k = Math.max(0, Math.floor(start)); k <= last; k++) cover[k * kinds + this.event[i]] += Math.min(end, k + 1) - Math.max(start, k);
      }
      const cells = new Array(columns).fill(null), owed = new Float64Array(kinds + 1);
      for (let k = 0; k < columns; k++) {
        let sum = 0, best = kinds;
        for (let kind = 0; kind < kinds; kind++) {
          owed[kind] += cover[k * kinds + kind];
          sum += cover[k * kinds + kind];
        }
        owed[kinds] += Math.max(0, 1 - sum); // idle
        for (let kind = 0; kind < kinds; kind++) if (cover[k * kinds + kind] > 0 && owed[kind] > owed[best]) best = kind;
        owed[best] -= 1;
        if (best < kinds) cells[k] = best;
        if (sum > 0.999 && best === kinds) cells[k] = this.most(cover, k * kinds, kinds);
      }
      for (let k = 0, next; k < columns; k = next) {
        for (next = k + 1; next < columns && cells[next] === cells[k]; next++);
        if (cells[k] === null) continue;
        seen.add(cells[k]);
        pen.fillStyle = colours[cells[k]];
        pen.fillRect(left + (k * wide) / columns, y(lane) + 0.07 * row, ((next - k) * wide) / columns, 0.86 * row);
      }
    }
    return seen;
  }

  // The kind that covers most of a cell.
  most(cover, from, kinds) {
    let best = 0;
    for (let kind = 1; kind < kinds; kind++) if (cover[from + kind] > cover[from + best]) best = kind;
    return best;
  }

  label(event) {
    if (this.block.labels?.[event]) return this.block.labels[event];
    const axis = axisOf(event), words = DOCUMENT.palette.labels[axis] || axis.replace("_", " ");
    return event === axis ? (isAxis(axis) ? `${words}, hidden` : words) : `${words}, exposed`;
  }

  // Where lanes and times lie on the canvas.
  place() {
    const { names } = this.block, [top, bottom] = this.range || [0, names.length], count = bottom - top;
    const width = Math.max(608, this.node.clientWidth), left = Math.min(0.3 * width, 8 + 6.5 * Math.max(...names.map((name) => name.length)));
    const row = Math.min(22, Math.max(3, 700 / count)), wide = width - left - 12, high = row * count;
    return { left, wide, row, width, high, top, bottom, x: (time) => left + ((time - this.from) / (this.to - this.from)) * wide, y: (lane) => 4 + (lane - top) * row };
  }

  draw() {
    if (!this.first) return;
    const { names } = this.block, at = this.place(), { left, wide, row, width, high, top, bottom, x, y } = at, ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: (high + 44) * ratio });
    this.canvas.style.height = `${high + 44}px`;
    const pen = this.canvas.getContext("2d"), [lanes, count] = this.visible();
    pen.scale(ratio, ratio);
    this.drawn = count <= FEW ? "bars" : "cells";
    const seen = count <= FEW ? this.single(pen, lanes, at) : this.grid(pen, lanes, at);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = css("--text");
    pen.textAlign = "right";
    const ranks = row < 11 ? names.map((name, i) => i).filter((i) => !isAxis(names[i].split(" ").pop())) : names.map((name, i) => i);
    const named = ranks.filter((lane) => lane >= top && lane < bottom), step = Math.ceil((named.length * 13) / Math.max(high, 13));
    named.forEach((lane, i) => { if (i % step === 0) pen.fillText(names[lane], left - 6, y(lane) + row / 2 + 4, left - 8); });
    pen.textAlign = "center";
    for (const tick of ticks(this.from * this.tell, this.to * this.tell, 8)) pen.fillText(digits(tick, 6), x(tick / this.tell), high + 20);
    pen.fillStyle = css("--quiet");
    pen.fillText(`time (${this.word})`, left + wide / 2, high + 38);
    this.mark(pen, at);
    fillLegend(this.legend, [...seen].sort((a, b) => a - b).map((kind) => {
      const event = this.block.events[kind];
      return { name: this.label(event), colour: colourOf(event), hatched: event.startsWith(EXPOSED) };
    }));
    if (this.chunks > 1) this.legend.append(make("li", {}, "paler actions: later chunks of a rank"));
  }

  // Frames around the bar that the keys stand on, and around what is being chosen.
  mark(pen, { x, y, row }) {
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2;
    if (this.at >= 0) pen.strokeRect(x(this.start[this.at]), y(this.lane[this.at]), (this.length[this.at] / (this.to - this.from)) * this.place().wide, row);
    if (this.box) pen.strokeRect(...this.box);
  }

  // Pointing says what a bar is; dragging chooses what to see, a double click shows all again.
  listen() {
    const place = (event) => {
      const rect = this.canvas.getBoundingClientRect(), at = this.place();
      const [x, y] = [event.clientX - rect.left, event.clientY - rect.top];
      return { x, y, time: this.from + ((x - at.left) / at.wide) * (this.to - this.from), lane: at.top + (y - 4) / at.row };
    };
    let held = null;
    this.canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") held = place(event); });
    this.canvas.addEventListener("pointermove", (event) => {
      const now = place(event), lane = Math.floor(now.lane);
      if (held) { this.box = [held.x, held.y, now.x - held.x, now.y - held.y]; this.draw(); }
      else if (lane >= 0 && lane < this.block.names.length) { const i = this.nearest(lane, now.time); if (i >= 0) this.say(i); }
    });
    window.addEventListener("pointerup", (event) => {
      if (!held) return;
      const now = place(event), since = held;
      held = this.box = null;
      if (Math.abs(now.x - since.x) < 6) return void this.draw();
      const [top, bottom] = [Math.min(now.lane, since.lane), Math.max(now.lane, since.lane)];
      if (this.block.names.length > 24 && bottom - top > 2) this.range = [Math.max(0, Math.floor(top)), Math.min(this.block.names.length, Math.ceil(bottom))];
      this.show(Math.min(now.time, since.time), Math.max(now.time, since.time));
    });
    this.canvas.addEventListener("dblclick", () => { this.range = null; this.show(0, this.end); });
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

  nearest(lane, time) {
    const i = this.after(lane, time);
    return i < this.first[lane + 1] && this.start[i] <= time + (this.to - this.from) / 500 ? i : -1;
  }
  say(i) {
    const event = this.block.events[this.event[i]], unit = this.block.unit_s;
    const word = this.word[i] >= 0 ? ` ${this.block.words[this.word[i]]}` : "", layer = this.layer[i] >= 0 ? ` in layer ${this.layer[i]} of the stage` : "";
    const of = this.microbatch[i] >= 0 ? ` of microbatch ${this.microbatch[i]}` : "", chunk = this.chunks > 1 && this.chunk[i] >= 0 ? `, chunk ${this.chunk[i]}` : "";
    this.told.textContent = `${this.block.names[this.lane[i]]}: ${(this.block.labels?.[event] || event).replaceAll("_", " ")}${word}${of}${chunk}${layer}, ${format(this.length[i] * unit, "s")} from ${format(this.start[i] * unit, "s")} to ${format((this.start[i] + this.length[i]) * unit, "s")}`;
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
    else this.draw();
  }
}

// Black or white, whichever reads better on a colour.
function readable(colour) {
  const [r, g, b] = channels(colour);
  return 0.299 * r + 0.587 * g + 0.114 * b < 115 ? "#ffffff" : "#000000";
}

const channels = (colour) => (colour[0] === "#" ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : colour.match(/\d+/g).map(Number));

// A colour on its way to another.
function mix(from, to, share) {
  const [a, b] = [channels(from), channels(to)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * share)).join(",")})`;
}
