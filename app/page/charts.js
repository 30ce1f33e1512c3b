// What happened lately, as charts; the latest numbers stand beside each, for who does not see them.
import { colour, onColours } from "./colours.js";
import { byId, count, element, say, time } from "./format.js";

const HEIGHT = 128;
const milliseconds = (values) => values.map((value) => (value === null ? null : value * 1000));
const latest = (values) => values[values.length - 1];

/** Of what there is no half: lines between whole numbers have no label. */
function compact(value) {
  if (!Number.isInteger(value)) return "";
  return value >= 10000 ? `${Math.round(value / 1000)}k` : count(value);
}
const ms = (value) => (value >= 1000 ? `${+(value / 1000).toFixed(1)} s` : `${+value.toFixed(1)} ms`);
const ago = (value) => (value === 0 ? "now" : `${value} s`);

const line = (name, tone, dash) => ({ name, tone, dash });

const KINDS = [
  {
    title: "Tokens a second",
    lines: [line("generated", "--line-1"), line("prompt", "--line-2", [4, 3])],
    read: ({ seconds }) => [seconds.generated_tokens, seconds.prompt_tokens],
    words: count,
    axis: compact,
  },
  {
    title: "Tokens of each step",
    steps: true,
    lines: [line("decode", "--line-1"), line("prefill", "--line-2")],
    read: ({ steps }) => [steps.decode_tokens, steps.prompt_tokens],
    words: count,
    axis: compact,
  },
  {
    title: "Time to first token",
    lines: [line("p50", "--line-1"), line("p95", "--line-2", [4, 3])],
    read: ({ seconds }) => [milliseconds(seconds.ttft_s.p50), milliseconds(seconds.ttft_s.p95)],
    words: (value) => time(value === null ? null : value / 1000),
    axis: ms,
  },
  {
    title: "Time between tokens",
    lines: [line("p50", "--line-1"), line("p95", "--line-2", [4, 3])],
    read: ({ seconds }) => [milliseconds(seconds.itl_s.p50), milliseconds(seconds.itl_s.p95)],
    words: (value) => time(value === null ? null : value / 1000),
    axis: ms,
  },
  {
    title: "Requests",
    lines: [line("running", "--line-1"), line("waiting", "--line-2", [4, 3])],
    read: ({ seconds }) => [seconds.running, seconds.waiting],
    words: count,
    axis: compact,
  },
  {
    title: "Time of each step",
    steps: true,
    lines: [line("step", "--line-3")],
    read: ({ steps }) => [steps.ms],
    words: (value) => time(value === null ? null : value / 1000),
    axis: ms,
  },
];

class Chart {
  constructor(kind) {
    this.kind = kind;
    this.values = kind.lines.map(() => element("b", {}, "–"));
    const legend = kind.lines.map(({ name, tone, dash }, at) => {
      const swatch = element("span", { className: dash ? "swatch dashed" : "swatch" });
      swatch.style.setProperty("--tone", `var(${tone})`);
      return element("span", {}, swatch, `${name} `, this.values[at]);
    });
    const over = kind.steps ? "last 120 steps" : "last two minutes";
    this.plot = element("div", { className: "plot" });
    this.plot.setAttribute("aria-hidden", "true");
    const title = element("h3", {}, kind.title, element("span", { className: "quiet" }, ` ${over}`));
    const caption = element("figcaption", {}, title, element("p", { className: "numbers small" }, ...legend));
    this.figure = element("figure", { className: "card chart" }, caption, this.plot);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  resize() {
    if (this.chart && this.plot.clientWidth) {
      this.chart.setSize({ width: this.plot.clientWidth, height: HEIGHT });
    }
  }

  show(live) {
    const columns = this.kind.read(live);
    columns.forEach((column, at) => say(this.values[at], this.kind.words(latest(column) ?? null)));
    const length = columns[0].length;
    // The latest on the right: 0 is the step, or the second, that was the last to end.
    const places = Array.from({ length }, (_, at) => at - length + 1);
    this.data = [places, ...(this.kind.steps ? stacked(columns) : columns)];
    if (this.chart) this.chart.setData(this.data);
    else if (this.plot.clientWidth) this.draw();
  }

  draw() {
    const { lines, steps, axis } = this.kind;
    const series = lines.map(({ tone, dash }) => (steps ? bars(tone) : curve(tone, dash)));
    const text = { font: "11px system-ui, sans-serif", stroke: () => colour("--quiet") };
    const grid = { stroke: () => colour("--rule"), width: 1 };
    const options = {
      width: this.plot.clientWidth,
      height: HEIGHT,
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: () => [-119.5, 0.5] },
        y: { range: (_, __, most) => [0, Math.max(most ?? 0, steps ? 4 : 1) * 1.08] },
      },
      axes: [
        {
          ...text,
          size: 22,
          grid: { show: false },
          ticks: { show: false },
          splits: () => [-90, -60, -30, 0],
          values: (_, places) => places.map(steps ? (at) => (at === 0 ? "latest" : `${at}`) : ago),
        },
        {
          ...text,
          size: 50,
          gap: 4,
          grid,
          ticks: { show: false },
          space: 34,
          values: (_, values) => values.map(axis),
        },
      ],
      series: [{}, ...(steps ? series.reverse() : series)],
    };
    this.chart = new uPlot(options, this.data, this.plot);
    onColours(() => this.chart.redraw(false));
  }
}

/** Columns one upon the other, the highest first: what is drawn later stands before it. */
function stacked(columns) {
  const sums = columns.map((_, upTo) =>
    columns[0].map((_, at) => columns.slice(0, upTo + 1).reduce((sum, column) => sum + column[at], 0)),
  );
  return sums.reverse();
}

function bars(tone) {
  return {
    stroke: () => colour(tone),
    fill: () => colour(tone),
    width: 0,
    paths: uPlot.paths.bars({ size: [0.8, 12] }),
    points: { show: false },
  };
}

function curve(tone, dash) {
  return {
    stroke: () => colour(tone),
    width: 1.75,
    dash,
    points: { show: false },
    spanGaps: false,
  };
}

/** Make the charts; what is returned shows a document of the server. */
export function openCharts() {
  const charts = KINDS.map((kind) => new Chart(kind));
  byId("charts").append(...charts.map((chart) => chart.figure));
  return (live) => charts.forEach((chart) => chart.show(live));
}
