// The page: the document laid out, its figures drawn, light or dark.

let DOCUMENT = JSON.parse(document.getElementById("document").textContent);

const MAKERS = {
  figures: (block, part) => make("dl", { class: "figures" }, block.items.map((item) => makeFigure(item, part.summary))),
  note: (block) => make("p", { class: `note ${block.mood}` }, block.mood === "warning" ? make("strong", {}, "Note: ") : null, block.text),
  table: (block) => {
    const table = makeTable(block.columns, block.rows, block.title);
    return block.folded ? make("details", { class: "fold" }, make("summary", {}, block.title), table) : table;
  },
  choices: (block) => makeChoices(block),
  timeline: (block) => {
    const timeline = new Timeline(block);
    TIMELINES.push(timeline);
    return timeline.figure;
  },
};
const TIMELINES = [];

// A headline figure: read from the summary by its key, so that it is the number of the JSON.
function makeFigure(item, summary) {
  const value = at(summary, item.key), range = item.range_key ? at(summary, item.range_key) : null;
  const scaled = typeof value === "number" ? value * item.factor : value;
  return make("div", {}, make("dt", {}, item.label),
    make("dd", { class: "value", "data-key": item.key, "data-value": value, title: String(value) }, format(scaled, item.unit)),
    range ? make("dd", { class: "range", "data-range": range.join(" ") }, `${format(range[0] * item.factor, item.unit)} to ${format(range[1] * item.factor, item.unit)}`) : null,
    item.note ? make("dd", { class: "quiet" }, item.note) : null);
}

function makeSection(section, part) {
  const id = `${part.id}-${section.id}`;
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, section.title),
    section.lead ? make("p", { class: "lead" }, section.lead) : null, section.blocks.map((block) => (MAKERS[block.block] || makeChart)(block, part)));
}

function makePart(part, several) {
  return make("article", { id: part.id, "aria-label": part.title }, several ? make("h2", { class: "part" }, part.title) : null,
    make("p", { class: "quiet about" }, part.about), part.sections.map((section) => makeSection(section, part)));
}

function makeContents() {
  const entry = (id, title) => make("li", {}, make("a", { href: `#${id}` }, title));
  const of = (sections, id) => sections.map((section) => entry(`${id}-${section.id}`, section.title));
  const several = DOCUMENT.parts.length > 1;
  return make("ul", {}, of(DOCUMENT.shared, "shared"),
    DOCUMENT.parts.map((part) => (several ? make("li", {}, make("a", { href: `#${part.id}` }, part.title), make("ul", {}, of(part.sections, part.id))) : of(part.sections, part.id))));
}

function layOut() {
  DRAWN.length = TIMELINES.length = 0;
  const several = DOCUMENT.parts.length > 1;
  document.getElementById("title").textContent = DOCUMENT.title;
  document.getElementById("contents").replaceChildren(makeContents());
  document.getElementById("parts").replaceChildren(...DOCUMENT.shared.map((section) => makeSection(section, { id: "shared", summary: {} })),
    ...DOCUMENT.parts.map((part) => makePart(part, several)));
  const made = DOCUMENT.parts.map((part) => (part.digest ? `${part.title}: scenario ${part.digest.slice(0, 12)}` : part.title));
  document.getElementById("made").textContent = `mpsim ${DOCUMENT.mpsim}; ${made.join("; ")}`;
}

// Draw one figure after the other, so that the page answers meanwhile.
async function drawAll() {
  for (const [, draw] of DRAWN) { await draw(); await new Promise((done) => setTimeout(done)); }
  for (const timeline of TIMELINES) await (timeline.first ? timeline.draw() : timeline.load());
  document.documentElement.dataset.drawn = "yes";
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "light page" : "dark page";
}

async function loadPlotly() {
  const code = new TextDecoder().decode(await gunzip(document.getElementById("plotly").textContent.trim()));
  document.head.append(make("script", {}, code));
}

async function begin() {
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefers.matches ? "dark" : "light");
  prefers.addEventListener("change", (event) => { setTheme(event.matches ? "dark" : "light"); drawAll(); });
  document.getElementById("theme").onclick = () => { setTheme(dark() ? "light" : "dark"); drawAll(); };
  document.getElementById("menu").open = window.innerWidth > 900;
  if (DOCUMENT.live) document.getElementById("live").append(makeExplorer());
  layOut();
  document.documentElement.dataset.laid = "yes";
  if (typeof DecompressionStream === "undefined") {
    document.getElementById("parts").prepend(make("p", { class: "note warning" }, "This browser is too old to draw the figures (it needs DecompressionStream, of 2023); the tables hold all of their numbers."));
    return;
  }
  await loadPlotly();
  await drawAll();
}
begin();
