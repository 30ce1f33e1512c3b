// Draws a report's charts from its JSON block, in the colours that are on, and in light ones to print.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [], [7, 4], [2, 3]];
  const COLOURS = 7;
  const drawn = [];

  /** What a custom property of the style sheet comes to, as a canvas needs it. */
  function colour(name) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const tone = (series, at) => (series.quiet ? "--quiet" : `--series-${(at % COLOURS) + 1}`);
  const dash = (series, at) => (series.quiet ? [2, 3] : DASHES[at % DASHES.length]);

  const digits = (value) => {
    const size = Math.abs(value);
    const places = size === 0 || size >= 100 ? 0 : Math.min(4, Math.max(0, 2 - Math.floor(Math.log10(size))));
    return value.toLocaleString("en", { maximumFractionDigits: places });
  };

  /** A number in its unit, as people say it. */
  function words(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "ratio") return `${digits(value * 100)}%`;
    if (unit !== "s") return digits(value);
    return value !== 0 && Math.abs(value) < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
  }

  const font = (ratio = 1) => `${("print" in root.dataset ? 10 : 12) * ratio}px system-ui, sans-serif`;
  const named = ({ label, unit }) => (unit && unit !== "s" && unit !== "ratio" ? `${label} (${unit})` : label);

  function scale({ log, most }, least) {
    if (log) return { distr: 3, time: false };
    const range = (_, low, high) => {
      const top = most ?? (high > 0 ? high * 1.06 : 1);
      return [Math.min(least ?? low, low), top];
    };
    return least === undefined ? { time: false } : { time: false, range };
  }

  function axis(which, spec, side) {
    const quiet = colour("--quiet");
    return {
      side,
      stroke: quiet,
      font: font(),
      labelFont: font(),
      label: side === 2 ? named(spec) : spec.unit === "s" || spec.unit === "ratio" ? undefined : spec.unit,
      labelSize: 20,
      labelGap: 2,
      size: side === 2 ? 26 : 58,
      gap: 5,
      space: side === 2 ? 70 : 34,
      grid: { stroke: colour("--rule"), width: 1, show: side === 3 },
      ticks: { stroke: colour("--rule"), width: 1, size: side === 2 ? 4 : 0 },
      values: (_, places) => places.map((place) => (place === null ? "" : words(place, spec.unit))),
    };
  }

  /** One x for all series; with them go bands, and of stacked ones the sums. */
  function columns(chart) {
    const tables = [];
    for (const series of chart.series) {
      tables.push([series.x, series.y]);
      if (series.low) tables.push([series.x, series.low, series.high]);
    }
    if (!tables.length) return [[0], []];
    const data = uPlot.join(tables, tables.map((table) => table.map(() => 1)));
    if (chart.stacked) {
      for (let at = 2; at < data.length; at++) {
        data[at] = data[at].map((value, place) => (value ?? 0) + (data[at - 1][place] ?? 0));
      }
    }
    return data;
  }

  function lines(chart) {
    const all = [{}];
    const bands = [];
    const stepped = uPlot.paths.stepped({ align: 1 });
    chart.series.forEach((series, at) => {
      const stroke = colour(tone(series, at));
      const filled = series.style === "area";
      const fill = filled ? (chart.stacked ? translucent(stroke, 0.55) : translucent(stroke, 0.22)) : undefined;
      all.push({
        stroke,
        width: series.style === "points" ? 0 : 1.75,
        dash: filled ? [] : dash(series, at),
        fill: chart.stacked && at ? undefined : fill,
        paths: filled && !chart.stacked || series.style === "step" ? stepped : undefined,
        points: { show: series.style === "points" || series.x.length < 25 && !filled, size: series.style === "points" ? 4 : 6, fill: stroke },
        spanGaps: true,
      });
      if (chart.stacked && at) bands.push({ series: [all.length - 1, all.length - 2], fill });
      if (series.low) {
        all.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
        all.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
        bands.push({ series: [all.length - 1, all.length - 2], fill: translucent(stroke, 0.16) });
      }
    });
    return { series: all, bands };
  }

  /** The same colour, seen through. */
  function translucent(stroke, alpha) {
    const [red, green, blue] = stroke.match(/[\d.]+/g);
    return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
  }

  /** Lines across at values that somebody named. */
  function marks(chart) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--accent");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.font = font(devicePixelRatio);
      for (const [along, at, text] of chart.marks) {
        const place = plot.valToPos(at, along, true);
        const across = along === "y";
        const inside = across ? place >= bbox.top && place <= bbox.top + bbox.height : place >= bbox.left && place <= bbox.left + bbox.width;
        if (!inside) continue;
        ctx.beginPath();
        ctx.moveTo(across ? bbox.left : place, across ? place : bbox.top);
        ctx.lineTo(across ? bbox.left + bbox.width : place, across ? place : bbox.top + bbox.height);
        ctx.stroke();
        const gap = 4 * devicePixelRatio;
        ctx.textAlign = across ? "right" : "left";
        ctx.fillText(text, across ? bbox.left + bbox.width - gap : place + gap, across ? place - gap : bbox.top + bbox.height - 2 * gap);
      }
      ctx.restore();
    };
  }

  function swatch(series, at) {
    const name = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(name, "svg");
    const line = document.createElementNS(name, "line");
    const area = series.style === "area";
    const set = { x1: 0, x2: "100%", y1: "50%", y2: "50%", "stroke-width": area ? 8 : 2.5 };
    for (const [key, value] of Object.entries(set)) line.setAttribute(key, value);
    line.style.stroke = `var(${tone(series, at)})`;
    if (area) line.style.opacity = 0.6;
    else line.style.strokeDasharray = dash(series, at).join(" ");
    svg.setAttribute("aria-hidden", "true");
    svg.append(line);
    return svg;
  }

  /** The names of the series; where the pointer is, their values there. */
  function legend(figure, chart) {
    const place = figure.querySelector(".legend");
    const where = document.createElement("span");
    const values = chart.series.map((series, at) => {
      const entry = document.createElement("span");
      const value = document.createElement("b");
      entry.append(swatch(series, at), `${series.name} `, value);
      place.append(entry);
      return value;
    });
    place.append(where);
    return (plot) => {
      const at = plot.cursor.idx;
      const beside = at === null || at === undefined;
      where.textContent = beside ? "" : `at ${words(plot.data[0][at], chart.x.unit)}`;
      values.forEach((value, number) => {
        value.textContent = beside ? "" : words(nearest(chart.series[number], plot.data[0][at]), chart.y.unit);
      });
    };
  }

  /** What a series was at x: its last value until there. */
  function nearest(series, x) {
    let found = null;
    for (let at = 0; at < series.x.length && series.x[at] <= x; at++) found = series.y[at];
    return found;
  }

  function draw(figure, chart, showValues) {
    const place = figure.querySelector(".plot");
    place.replaceChildren();
    const { series, bands } = lines(chart);
    const least = chart.y.log ? undefined : 0;
    return new uPlot({
      width: place.clientWidth,
      height: place.clientHeight,
      padding: [12, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: scale(chart.x), y: scale(chart.y, least) },
      axes: [axis("x", chart.x, 2), axis("y", chart.y, 3)],
      series,
      bands,
      hooks: { draw: [marks(chart)], setCursor: [showValues] },
    }, columns(chart), place);
  }

  function drawAll() {
    for (const { figure, chart, showValues, plot } of drawn) plot?.destroy();
    for (const each of drawn) each.plot = draw(each.figure, each.chart, each.showValues);
  }

  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = charts[figure.dataset.chart];
    drawn.push({ figure, chart, showValues: legend(figure, chart) });
  }
  drawAll();

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawAll();
    width = innerWidth;
  });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", drawAll);
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    drawAll();
  });
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    root.dataset.print = "";
    drawAll();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    drawAll();
  });
})();
