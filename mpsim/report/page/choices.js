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
    const words = (slider.label || slider.key).split(/(?<=\.)/).flatMap((word) => [word, make("wbr")]);
    return [slider.group || "", make("div", { class: "control" }, make("label", { for: id, title: slider.key }, words), ordered ? shown : null, input)];
  });
  const groups = [...new Set(controls.map(([group]) => group))];
  return make("div", { class: "controls" }, groups.map((group) => {
    const own = controls.filter(([name]) => name === group).map(([, control]) => control);
    return make("fieldset", {}, group ? make("legend", {}, group) : null, own);
  }));
}
makeSliders.count = 0;

// A figure whose answers are in the document.
function makeChoices(block) {
  const known = new Map(block.answers.map((answer) => [answer.places.join(), answer]));
  const start = known.get(block.sliders.map((slider) => slider.start).join());
  const figures = make("div", { "aria-live": "polite" }), plot = make("div", { class: "plot", role: "img", "aria-label": `${block.title}. ${block.alt}` });
  const legend = make("ul", { class: "legend" }), rows = make("div", {});
  let answer = start;
  const bars = () => {
    const shown = [answer, start].filter((each) => each && each.summary);
    const names = [...new Set(shown.flatMap((each) => Object.keys(each.summary[block.account] || {})))];
    const serves = block.account === "account_s";
    return {
      block: "bars", title: block.title, alt: block.alt, unit: "s", axis: "time", limit: null, names: answer === start ? ["as shown"] : ["as chosen", "at first"],
      parts: names.map((name) => ({ name: name.replaceAll("_", " "), values: (answer === start ? [start] : shown).map((each) => each.summary[block.account][name] || 0),
        colour: colourOfPart(name, serves), hatched: name.startsWith("exposed_") })).filter((part) => part.values.some((value) => value > 0)),
    };
  };
  const show = () => {
    const warned = answer && answer.reason ? make("p", { class: "note warning" }, make("strong", {}, "Note: "), answer.reason) : null;
    if (!answer || !answer.summary) {
      figures.replaceChildren(warned || make("p", { class: "note warning" }, "This combination is not among the answers of this page."));
      plot.hidden = true;
      return;
    }
    plot.hidden = false;
    const items = block.figures.filter((item) => at(answer.summary, item.key) !== undefined && at(answer.summary, item.key) !== null);
    figures.replaceChildren(make("dl", { class: "figures" }, items.map((item) => makeFigure(item, answer.summary))), ...(warned ? [warned] : []));
    const drawn = bars(), [columns, cells] = TABLES.bars(drawn);
    rows.replaceChildren(makeTable(columns, cells, block.title));
    fillLegend(legend, LEGENDS.bars(drawn));
    if (typeof Plotly !== "undefined") {
      const [traces, form] = CHARTS.bars(drawn);
      Plotly.react(plot, traces, form, CONFIG);
    }
  };
  DRAWN.push([plot, show]);
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
  return make("figure", { class: "chart choices" }, make("figcaption", {}, make("h3", {}, block.title), make("p", { class: "quiet" }, block.alt)), sliders, figures, legend, plot,
    make("details", {}, make("summary", {}, "These numbers as a table"), rows));
}

const OF_SERVICE = { decode: "forward", prefill: "backward", exposed_kv: "cp", down: "other", idle_cache: "straggling", idle: "bubble" };
function colourOfPart(part, serves) {
  const word = (serves && OF_SERVICE[part]) || part.replace("exposed_", "");
  return DOCUMENT.palette.colours[word] ? word : "other";
}
