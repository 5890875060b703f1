// The page given life: its theme, its figures, and where the explorer serves it its settings.

const DOCUMENT = JSON.parse(document.getElementById("document").textContent);

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "light page" : "dark page";
  for (const timeline of TIMELINES) timeline.draw();
}

function begin() {
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefers.matches ? "dark" : "light");
  prefers.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  document.getElementById("theme").onclick = () => setTheme(dark() ? "light" : "dark");
  document.getElementById("menu").open = window.innerWidth > 900;
  window.addEventListener("resize", () => { for (const timeline of TIMELINES) timeline.draw(); });
  if (DOCUMENT.live) document.getElementById("live").append(makeExplorer());
  document.documentElement.dataset.laid = "yes";
  enlivenAll(document.getElementById("middle"));
}
begin();
