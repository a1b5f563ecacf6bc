// SPDX-License-Identifier: Apache-2.0
// Runs after the page's own script, and writes its findings into the page: for each plot, how many points it
// has, whether all of them are within its frame, whether the pointer over a point shows its value, and
// whether the plot has a size; whether hiding a run hides its lines; and whether the page is no wider than
// the window.
(function () {
  var seen = [], tip = document.getElementById("tip");
  document.querySelectorAll("figure[data-plot]").forEach(function (figure) {
    var svg = figure.querySelector("svg"), box = svg.getBoundingClientRect(), f = svg.dataset.frame.split(" ").map(Number);
    var points = 0, inside = true;
    svg.querySelectorAll("path[data-points]").forEach(function (path) {
      var b = path.getBBox();
      points += +path.dataset.points;
      inside = inside && b.x >= f[0] - 1 && b.y >= f[3] - 1 && b.x + b.width <= f[2] + 2 && b.y + b.height <= f[1] + 1;
      inside = inside && (b.width > 0 || b.height > 0);
    });
    var at = /(-?[\d.]+)[ ,](-?[\d.]+)/.exec(svg.querySelector("path[data-points]").getAttribute("d"));
    var scale = box.width / svg.viewBox.baseVal.width;
    tip.hidden = true;
    svg.dispatchEvent(new MouseEvent("mousemove",
      { clientX: box.left + at[1] * scale, clientY: box.top + at[2] * scale, bubbles: true }));
    seen.push("plot " + figure.dataset.plot + " " + points + " " + inside + " " + (!tip.hidden && tip.textContent.length > 3) +
      " " + (box.width > 200 && box.height > 100));
  });
  var box = document.querySelector("#legend input");
  if (box) {
    box.click();
    var line = document.querySelector("path.line.run0");
    seen.push("hides " + (getComputedStyle(line).display === "none"));
    box.click();
    seen.push("shows " + (getComputedStyle(line).display !== "none"));
  }
  seen.push("fits " + (document.documentElement.scrollWidth <= window.innerWidth));
  var style = getComputedStyle(document.body);
  seen.push("colors " + style.color + " on " + style.backgroundColor);
  var out = document.createElement("pre");
  out.id = "probe";
  out.textContent = seen.join("\n");
  document.body.appendChild(out);
})();
