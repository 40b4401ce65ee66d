"use strict";
// Moves a limit through the callers' peaks. What exceeds it, caller by caller and window by window, is what it touches.
for (const slider of document.querySelectorAll(".slider")) {
  const pairs = (text) => text.split(" ").filter(Boolean).map((pair) => pair.split(":").map(Number));
  const peaks = pairs(slider.dataset.peaks);
  const runs = pairs(slider.dataset.runs);
  const all = peaks.reduce((sum, [, callers]) => sum + callers, 0);
  const input = slider.querySelector("input");
  const output = slider.querySelector("output");
  const show = () => {
    const limit = Number(input.value);
    const callers = peaks.reduce((sum, [peak, n]) => sum + (peak > limit ? n : 0), 0);
    const hits = runs.reduce((sum, [asked, n]) => sum + Math.max(0, asked - limit) * n, 0);
    output.textContent = `${limit.toLocaleString("en")}: touches ${callers.toLocaleString("en")} of ` +
      `${all.toLocaleString("en")} callers, refuses about ${hits.toLocaleString("en")} hits`;
  };
  input.addEventListener("input", show);
  show();
}
