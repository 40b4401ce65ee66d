"use strict";
// Moves a limit through the callers' peaks, and its line in the chart above. What exceeds it, caller by caller and window by window,
// is what it touches: counted from all that was asked for, so also from what another rule refuses first.
for (const slider of document.querySelectorAll(".slider")) {
  const pairs = (text) => text.split(" ").filter(Boolean).map((pair) => pair.split(":").map(Number));
  const peaks = pairs(slider.dataset.peaks);
  const runs = pairs(slider.dataset.runs);
  const { quota, together } = slider.dataset;
  const all = peaks.reduce((sum, [, callers]) => sum + callers, 0);
  const input = slider.querySelector("input");
  const output = slider.querySelector("output");
  const line = slider.previousElementSibling.querySelector(".limit");
  const written = (number) => Number(number).toLocaleString("en");
  const draw = (limit) => {
    const part = limit / Number(line.dataset.end);
    line.hidden = part > 1;
    line.style.left = `${Math.min(1, part) * 100}%`;
    line.classList.toggle("left", part > 0.7);
    line.firstElementChild.textContent = `limit ${written(limit)}`;
  };
  const show = () => {
    const limit = Number(input.value);
    const callers = peaks.reduce((sum, [peak, n]) => sum + (peak > limit ? n : 0), 0);
    const hits = runs.reduce((sum, [asked, n]) => sum + Math.max(0, asked - limit) * n, 0);
    const alone = together === undefined ? "" : " alone, without the other limits and rules";
    const beside = together !== undefined && input.value === quota ? `; with them the rule refuses ${written(together)} requests, as above` : "";
    output.textContent = `${written(limit)}${alone}: touches ${written(callers)} of ${written(all)} callers, ` +
      `refuses about ${written(hits)} hits${beside}`;
  };
  input.addEventListener("input", () => (show(), draw(Number(input.value))));
  show();
}
