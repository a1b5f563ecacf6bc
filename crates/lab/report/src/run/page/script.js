// SPDX-License-Identifier: Apache-2.0
// This script only adds comfort: it shows the value under the cursor, and hides runs. The page is complete
// without it.
(function () {
  "use strict";
  function bent(scale, v) {
    if (scale.kind === "log") return Math.log(v);
    if (scale.kind === "linear") return v;
    var d = (v - scale.centre) / scale.reach;
    return Math.abs(d) <= 1 ? d : Math.sign(d) * (1 + scale.bend * Math.log(Math.abs(d)));
  }
  function unbent(scale, u) {
    if (scale.kind === "log") return Math.exp(u);
    if (scale.kind === "linear") return u;
    var d = Math.abs(u) <= 1 ? u : Math.sign(u) * Math.exp((Math.abs(u) - 1) / scale.bend);
    return scale.centre + d * scale.reach;
  }
  function scaleOf(text) {
    var p = text.split(" ");
    return { kind: p[0], low: +p[1], high: +p[2], centre: +p[3], reach: +p[4], bend: +p[5] };
  }
  function value(scale, share) {
    var low = bent(scale, scale.low), high = bent(scale, scale.high);
    return unbent(scale, low + share * (high - low));
  }
  function time(ns) {
    var a = Math.abs(ns), units = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];
    for (var i = 0; i < units.length; i++) {
      if (a >= units[i][0]) return (ns / units[i][0]).toPrecision(4) + " " + units[i][1];
    }
    return ns.toFixed(0) + " ns";
  }
  function words(unit, v) {
    var p = unit.split(":");
    if (p[0] === "packet") return "packet " + Math.round(v);
    if (p[0] === "count") return Math.round(v) + " packets";
    if (p[0] === "time") return time(v);
    if (p[0] === "deviation") return time(v + +p[1]) + " (" + (v > 0 ? "+" : "") + time(v) + ")";
    return v.toPrecision(2) + (p[0] === "density" ? " per us" : "");
  }
  function pointsOf(path) {
    if (!path.points) {
      path.points = [];
      var pair = /(-?[\d.]+)[ ,](-?[\d.]+)/g, d = path.getAttribute("d"), m;
      while ((m = pair.exec(d))) path.points.push([+m[1], +m[2]]);
    }
    return path.points;
  }
  var tip = document.getElementById("tip");
  function show(svg, event) {
    var box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    var x = (event.clientX - box.left) / box.width * view.width, y = (event.clientY - box.top) / box.height * view.height;
    var best = 900, at = null, name = "";
    svg.querySelectorAll("path[data-points]").forEach(function (path) {
      if (path.classList.contains("off")) return;
      pointsOf(path).forEach(function (p) {
        var far = (p[0] - x) * (p[0] - x) + (p[1] - y) * (p[1] - y);
        if (far < best) { best = far; at = p; name = path.dataset.name; }
      });
    });
    tip.hidden = !at;
    if (!at) return;
    var f = svg.dataset.frame.split(" ").map(Number);
    var vx = value(scaleOf(svg.dataset.x), (at[0] - f[0]) / (f[2] - f[0]));
    var vy = value(scaleOf(svg.dataset.y), (f[1] - at[1]) / (f[1] - f[3]));
    var several = svg.querySelectorAll("path[data-points]").length > 1;
    tip.textContent = (several ? name + ": " : "") + words(svg.dataset.ux, vx) + ", " + words(svg.dataset.uy, vy);
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - 34) + "px";
  }
  document.querySelectorAll("figure svg[data-frame]").forEach(function (svg) {
    svg.addEventListener("mousemove", function (event) { show(svg, event); });
    svg.addEventListener("mouseleave", function () { tip.hidden = true; });
  });
  document.querySelectorAll("#legend li").forEach(function (item) {
    var box = document.createElement("input"), label = document.createElement("label");
    box.type = "checkbox";
    box.checked = true;
    while (item.firstChild) label.appendChild(item.firstChild);
    label.prepend(box, " ");
    item.appendChild(label);
    box.addEventListener("change", function () {
      document.querySelectorAll("path.run" + item.dataset.run).forEach(function (path) {
        path.classList.toggle("off", !box.checked);
      });
    });
  });
})();
