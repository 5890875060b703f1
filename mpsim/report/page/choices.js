// Sliders that choose among answers: those of the document, or those that the explorer's server gives.

// A row of sliders; `chosen` is told the places of their values and which of them moved, and may answer with other places.
function makeSliders(sliders, chosen) {
  const places = sliders.map((slider) => slider.start), setters = [];
  const changed = (moved) => {
    const others = chosen(places.slice(), moved);
    if (others) others.forEach((place, i) => { if (place !== places[i]) setters[i](place); });
  };
  const controls = sliders.map((slider, i) => {
    const id = `slider-${slider.key.replaceAll(".", "-")}-${makeSliders.count++}`, shown = make("output", { for: id }, slider.values[slider.start]);
    const ordered = slider.values.every((value) => /^[0-9]/.test(value));
    const input = ordered
      ? make("input", { type: "range", id, min: 0, max: slider.values.length - 1, step: 1, value: slider.start, "aria-valuetext": slider.values[slider.start], "data-key": slider.key })
      : make("select", { id, "data-key": slider.key }, slider.values.map((value, place) => make("option", { value: place, selected: place === slider.start }, value)));
    setters[i] = (place) => {
      places[i] = place;
      input.value = String(place);
      shown.textContent = slider.values[place];
      input.setAttribute("aria-valuetext", slider.values[place]);
    };
    input.oninput = () => { setters[i](Number(input.value)); changed(i); };
    const words = (slider.label || slider.key).split(/(?<=[._])/).flatMap((word) => [word, make("wbr")]);
    return [slider.group || "", make("div", { class: "control" }, make("label", { for: id, title: slider.key }, words), ordered ? shown : null, input)];
  });
  const groups = [...new Set(controls.map(([group]) => group))];
  return make("div", { class: "controls" }, groups.map((group) => {
    const own = controls.filter(([name]) => name === group).map(([, control]) => control);
    return make("fieldset", {}, group ? make("legend", {}, group) : null, own);
  }));
}
makeSliders.count = 0;

// Bars cut into parts, one a row, each as long as its share of the longest.
function stacked(rows) {
  const sums = rows.map(([, account]) => Object.values(account).reduce((sum, value) => sum + value, 0)), most = Math.max(...sums);
  return rows.flatMap(([name, account]) => [make("span", {}, name), make("div", { class: "stack" }, Object.entries(account).filter(([, value]) => value > 0).map(([part, value]) => {
    const piece = make("span", { title: `${part.replaceAll("_", " ")} ${format(value, "s")}` });
    piece.style.width = `${(100 * value) / most}%`;
    piece.style.background = `var(${rule(eventOf(part))})`;
    return piece;
  }))]);
}

// A headline figure: read from the summary by its key, so that it is the number of the JSON.
function makeFigure(item, summary) {
  const value = at(summary, item.key), range = at(summary, item.range_key);
  return make("div", {}, make("dt", {}, item.label),
    make("dd", { class: "value", "data-key": item.key, "data-value": value, title: String(value) }, format(value, item.unit)),
    range ? make("dd", { class: "range" }, `${format(range[0], item.unit)} to ${format(range[1], item.unit)}`) : null,
    item.note ? make("dd", { class: "quiet" }, item.note) : null);
}

// Sliders over answers that are in the document.
function fillChoices(figure, block) {
  const known = new Map(block.answers.map((answer) => [answer.places.join(), answer]));
  const start = known.get(block.sliders.map((slider) => slider.start).join());
  const figures = make("div", { "aria-live": "polite" }), bars = make("div", { class: "stacks" }), legend = make("ul", { class: "legend" });
  let answer = start;
  const show = () => {
    const warned = answer && answer.reason ? make("p", { class: "note warning" }, make("strong", {}, "Note: "), answer.reason) : null;
    const told = answer && answer.summary;
    bars.hidden = legend.hidden = !told;
    if (!told) {
      figures.replaceChildren(warned || make("p", { class: "note warning" }, "This combination is not among the answers of this page."));
      return;
    }
    const items = block.figures.filter((item) => at(answer.summary, item.key) !== undefined && at(answer.summary, item.key) !== null);
    figures.replaceChildren(make("dl", { class: "figures" }, items.map((item) => makeFigure(item, answer.summary))), ...(warned ? [warned] : []));
    const first = start && start.summary && start !== answer ? [["at first", start.summary[block.account] || {}]] : [];
    const rows = [["as chosen", answer.summary[block.account] || {}], ...first];
    bars.replaceChildren(...stacked(rows));
    const parts = [...new Set(rows.flatMap(([, account]) => Object.keys(account).filter((part) => account[part] > 0)))];
    fillLegend(legend, parts.map((part) => ({ name: part.replaceAll("_", " "), colour: `var(${rule(eventOf(part))})` })));
  };
  // where not every combination has an answer, the nearest one that has what was chosen last
  const nearest = (places, moved) => {
    const far = (own) => own.places.reduce((sum, place, i) => sum + (place !== places[i]), 0);
    return block.answers.filter((own) => own.places[moved] === places[moved]).reduce((best, own) => (!best || far(own) < far(best) ? own : best), null);
  };
  const sliders = makeSliders(block.sliders, (places, moved) => {
    answer = known.get(places.join()) || nearest(places, moved);
    show();
    return answer && answer.places;
  });
  show();
  figure.append(sliders, figures, legend, bars);
}

// The kind of event that a part of the time is drawn as, in the colours of the palette.
function eventOf(part) {
  const { colours, serving } = DOCUMENT.palette, event = part.replace("exposed_", "");
  return colours[event] ? event : serving[event];
}
