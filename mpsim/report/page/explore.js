// The explorer: settings that its server answers.

async function ask(name, question) {
  const reply = await fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal: ask.control.signal });
  if (!reply.ok) throw new Error(await reply.text());
  return reply;
}
ask.control = new AbortController();
ask.tab = String(Math.random()); // a later question supersedes those of this tab alone

function offer(text, name, kind) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function makeExplorer() {
  const live = DOCUMENT.live, first = DOCUMENT.parts[0];
  let places = live.sliders.map((slider) => slider.start), waiting = 0;
  const told = make("p", { class: "told", role: "status" }, "As the scenario was written.");
  const problem = make("p", { class: "note warning", hidden: true });
  const main = first.summary.job === "serving" ? ["output_tokens_per_s_per_accelerator", "output tokens/s per accelerator", ""] : ["step_time_s", "step time", "s"];

  const show = (answer) => {
    if (answer.superseded) return;
    problem.hidden = !answer.error;
    problem.textContent = answer.error || "";
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered || 0) + 1);
    if (answer.error) { told.textContent = "These settings do not go together; the page still shows the last that did."; return; }
    DOCUMENT.parts = [answer.part];
    const change = at(answer.part.summary, main[0]) / at(first.summary, main[0]) - 1;
    told.textContent = `${main[1]} ${format(at(answer.part.summary, main[0]), main[2])}, ${change >= 0 ? "+" : ""}${(100 * change).toFixed(1)} % against the scenario as written; answered in ${format(answer.seconds, "s")}`;
    document.documentElement.dataset.drawn = "no";
    document.getElementById("contents").innerHTML = answer.contents; // of the server's own making, names escaped
    document.getElementById("parts").innerHTML = answer.html;
    enlivenAll(document.getElementById("parts"));
  };
  const request = async (whole) => {
    ask.control.abort();
    ask.control = new AbortController();
    told.textContent = whole ? "Working out everything…" : "…";
    try {
      show(await (await ask("answer", { places, whole, tab: ask.tab })).json());
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = `The explorer does not answer: ${error.message}`;
    }
  };
  const sliders = makeSliders(live.sliders, (chosen) => {
    places = chosen;
    clearTimeout(waiting);
    waiting = setTimeout(() => request(false), 40);
  });
  const button = (label, action) => make("button", { type: "button", onclick: action }, label);
  const save = async (name, file, kind) => {
    try {
      const text = await (await ask(name, { places })).text();
      if (text.startsWith('{"error"')) { problem.hidden = false; problem.textContent = JSON.parse(text).error; return; }
      offer(text, file, kind);
      told.textContent = `Saved as ${file}.`;
    } catch (error) { told.textContent = `The explorer does not answer: ${error.message}`; }
  };
  const stem = first.title.replace(/[^\w.+=@-]+/g, "-") || "scenario";
  return make("section", { id: "settings", "aria-labelledby": "settings-title" }, make("h2", { id: "settings-title" }, "Settings"), sliders, told, problem,
    make("div", { class: "tools" }, button("everything of this", () => request(true)), button("save as scenario", () => save("scenario", `${stem}.yaml`, "text/yaml")),
      button("save as report", () => save("report", `${stem}.html`, "text/html"))));
}
