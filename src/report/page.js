// Curves of the runs in #data.  Nothing of a run's is ever taken for markup: texts go through textContent or escape.
"use strict";
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var axes = {step: "step", tokens: "tokens", hours: "hours since the run began"};
  var drawn = [];

  function color(i) {
    return getComputedStyle(document.documentElement).getPropertyValue("--c" + i % 8).trim();
  }

  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function escape(text) {
    var span = document.createElement("span");
    span.textContent = text;
    return span.innerHTML;
  }

  // "#rrggbb" with an alpha.
  function faint(hex, alpha) {
    var n = parseInt(hex.slice(1), 16);
    return "rgba(" + (n >> 16) + "," + (n >> 8 & 255) + "," + (n & 255) + "," + alpha + ")";
  }

  // Curves of a chart: of all runs a colour each, or of one run a colour a series.
  function curves(chart) {
    var out = [];
    data.runs.forEach(function (run, r) {
      if (chart.run !== undefined && chart.run !== r) { return; }
      chart.series.forEach(function (s, i) {
        if (!run[s.key] || !run[s.key].some(function (v) { return v !== null; })) { return; }
        var hue = color(chart.run !== undefined ? i : r);
        var text = (data.runs.length > 1 && chart.run === undefined ? run.label + ": " : "") + s.text;
        out.push({text: text, x: run, y: run[s.key], color: s.faint ? faint(hue, 0.35) : hue, width: s.faint ? 1 : 1.8,
          dash: !s.faint && chart.run === undefined && i > 1 ? [6, 3] : null});
      });
      if (chart.validation && run.validation.loss.length > 0) {
        var hue = color(data.runs.length > 1 ? r : 1);
        out.push({text: (data.runs.length > 1 ? run.label + ": " : "") + "validation", x: run.validation,
          y: run.validation.loss, color: hue, width: 1.5, dots: true, dash: data.runs.length > 1 ? [3, 3] : null});
      }
    });
    return out;
  }

  // Rows [x, y of each curve], by x.
  function rows(list, axis) {
    var at = new Map();
    list.forEach(function (c, i) {
      c.x[axis].forEach(function (x, k) {
        if (x === null || c.y[k] === null) { return; }
        if (!at.has(x)) { at.set(x, new Array(list.length + 1).fill(null)); }
        at.get(x)[i + 1] = c.y[k];
      });
    });
    return Array.from(at.keys()).sort(function (a, b) { return a - b; }).map(function (x) {
      var row = at.get(x);
      row[0] = x;
      return row;
    });
  }

  function marks(chart, axis) {
    var out = [];
    data.runs.forEach(function (run, r) {
      if (chart.run !== undefined && chart.run !== r) { return; }
      run.restarts[axis].forEach(function (x) { out.push({x: x, color: color(r), restart: true}); });
      run.saves[axis].forEach(function (x) { out.push({x: x, color: color(r), restart: false}); });
    });
    return out;
  }

  // Restarts are dashed lines, saves ticks at the bottom.
  function underlay(list) {
    return function (canvas, area, graph) {
      list.forEach(function (mark) {
        if (mark.x === null) { return; }
        var x = graph.toDomXCoord(mark.x);
        canvas.strokeStyle = mark.color;
        canvas.setLineDash(mark.restart ? [5, 4] : []);
        canvas.beginPath();
        canvas.moveTo(x, mark.restart ? area.y : area.y + area.h - 6);
        canvas.lineTo(x, area.y + area.h);
        canvas.stroke();
      });
      canvas.setLineDash([]);
    };
  }

  function number(v) {
    var size = Math.abs(v);
    return v === null || v === undefined || isNaN(v) ? "" : size !== 0 && (size < 1e-3 || size >= 1e7) ? v.toExponential(3)
      : String(+v.toPrecision(6));
  }

  function draw(chart, axis, logarithmic) {
    var box = document.getElementById(chart.id), list = curves(chart), values = rows(list, axis);
    var legend = document.getElementById(chart.id + "-values"), series = {}, labels = [axis];
    if (values.length === 0) {
      box.textContent = "no numbers";
      return;
    }
    list.forEach(function (c, i) {
      var name = String(i);
      labels.push(name);
      series[name] = {color: c.color, strokeWidth: c.width, drawPoints: !!c.dots, pointSize: 3, strokePattern: c.dash};
    });
    drawn.push(new Dygraph(box, values, {
      labels: labels, series: series, connectSeparatedPoints: true, legend: "always", labelsDiv: legend,
      xlabel: axes[axis], ylabel: chart.unit, logscale: !!logarithmic && chart.id === "loss",
      includeZero: !!chart.zero, gridLineColor: variable("--grid"), axisLineColor: variable("--soft"),
      drawPoints: values.length === 1, highlightCircleSize: 3, digitsAfterDecimal: 4, maxNumberWidth: 8,
      axes: {x: {axisLabelFormatter: number}, y: {axisLabelFormatter: number, axisLabelWidth: 64}},
      underlayCallback: underlay(marks(chart, axis)),
      legendFormatter: function (at) {
        var head = at.x === undefined ? "" : axes[axis].split(" ")[0] + " " + number(at.x) + " &nbsp; ";
        return head + at.series.map(function (s) {
          var c = list[+s.label];
          return c === undefined ? "" : "<b style=\"color:" + c.color + "\">&#9632;</b> " + escape(c.text) +
            (at.x === undefined ? "" : " " + number(s.y));
        }).join(" &nbsp; ");
      }
    }));
  }

  // The address says what is chosen, so that a link or a reload shows the same: "#tokens", "#hours,log".
  function read_address() {
    var words = location.hash.slice(1).split(",");
    document.querySelectorAll("input[name=axis]").forEach(function (input) {
      input.checked = input.checked || words.indexOf(input.value) >= 0;
    });
    document.getElementById("log").checked = words.indexOf("log") >= 0;
  }

  function redraw() {
    var axis = document.querySelector("input[name=axis]:checked").value, log = document.getElementById("log").checked;
    drawn.forEach(function (graph) { graph.destroy(); });
    drawn = [];
    data.charts.forEach(function (chart) { draw(chart, axis, log); });
    try {
      history.replaceState(null, "", "#" + axis + (log ? ",log" : ""));
    } catch (e) { // a page within another has no address of its own
    }
  }

  function change() {
    read_address();
    redraw();
  }

  document.querySelectorAll("form input").forEach(function (input) { input.addEventListener("change", redraw); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.matchMedia("print").addEventListener("change", redraw);
  window.addEventListener("hashchange", change);
  change();
  if (drawn.length > 0) { // for who tests a page
    document.documentElement.setAttribute("data-x", drawn[0].xAxisExtremes().join(" "));
    document.documentElement.setAttribute("data-log", String(drawn[0].getOption("logscale")));
  }
  document.documentElement.setAttribute("data-drawn", String(document.querySelectorAll(".plot canvas").length / 2));
  document.documentElement.setAttribute("data-empty", String(data.charts.length - drawn.length));
  document.documentElement.setAttribute("data-milliseconds", String(Math.ceil(performance.now())));
})();
