// The picture of the promise: chat's latencies against the SLO and against chat alone, and below them the tokens harvested

/* global uPlot */
import { $, ask, make, milliseconds, say } from "./base.js";

const SPANS = { "5m": 5, "1h": 20, "1d": 60 }; // how many looks (of a second) between two readings
const state = { span: "5m", looks: 0, told: null, isReading: false };
const charts = new Map(); // place -> uPlot

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => (value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toPrecision(2)}`);
const ms = (plot, value) => (value == null ? "-" : milliseconds(value).join(" "));
const perSecond = (plot, value) => (value == null ? "-" : Math.round(value).toLocaleString("en"));

function clock(plot, ticks) {
  return ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));
}

function latency(name) {
  return {
    series: [
      { label: "P50", stroke: colour("--p50"), width: 1.5, value: ms },
      { label: "P99", stroke: colour("--p99"), width: 2, value: ms },
      { label: "P99 alone", stroke: colour("--p99"), width: 1, dash: [2, 3], value: ms },
      { label: "SLO", stroke: colour("--ink"), width: 1, dash: [6, 4], value: ms },
    ],
    data: ({ [name]: { p50, p99, alone, slo } }) => [p50, p99, alone, slo],
  };
}

const PLACES = {
  "chart-ttft": () => latency("ttft"),
  "chart-tpot": () => latency("tpot"),
  "chart-tokens": () => ({
    series: [
      { label: "Jobs", stroke: colour("--harvest"), fill: colour("--harvest-wash"), width: 1.5, value: perSecond },
      { label: "Chat", stroke: colour("--chat"), width: 1.5, value: perSecond },
    ],
    data: ({ job_tokens_per_s: jobs, chat_tokens_per_s: chat }) => [jobs, chat],
  }),
};

function chart(place) {
  const box = $(place);
  const { series } = PLACES[place]();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const points = series.map((one) => ({ ...one, spanGaps: false, points: { size: 3 } }));
  return new uPlot(
    {
      width: Math.max(200, box.clientWidth),
      height: place === "chart-tokens" ? 120 : 140,
      cursor: { sync: { key: "harvester" }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { y: { range: (plot, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] } },
      axes: [
        { ...axis, values: clock, space: 48, size: 28, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360].map((minutes) => 60 * minutes) },
        { ...axis, values: (plot, ticks) => ticks.map(short), size: 44 },
      ],
      series: [{ value: (plot, at) => (at == null ? "" : new Date(at * 1000).toLocaleTimeString("en-GB")) }, ...points],
    },
    [[], ...series.map(() => [])],
    box,
  );
}

// What a chart shows, for a reader who does not see it: the last and the highest value of each line.
function inWords(place, series, data) {
  const lines = series.map(({ label, value }, at) => {
    const known = data[at].filter((one) => one !== null);
    return known.length ? `${label}: last ${value(null, known.at(-1))}, highest ${value(null, Math.max(...known))}` : `${label}: none`;
  });
  return `${$(place).closest("figure").querySelector("figcaption").textContent}. ${lines.join("; ")}.`;
}

function draw() {
  if ($("overview").hidden || state.told === null) return;
  for (const place of Object.keys(PLACES)) {
    if (!charts.has(place)) charts.set(place, chart(place));
    const { series, data } = PLACES[place]();
    const columns = data(state.told);
    const plot = charts.get(place);
    plot.setData([state.told.at_s, ...columns]);
    plot.ctx.canvas.setAttribute("role", "img");
    plot.ctx.canvas.setAttribute("aria-label", inWords(place, series, columns));
  }
}

// Colours and sizes are the chart's own: made anew where the reader's setting or the window changed.
function drawAnew() {
  for (const plot of charts.values()) plot.destroy();
  charts.clear();
  draw();
}

function promise({ kept, max_slowdown: slowdown }) {
  for (const [span, { minutes, kept: good }] of Object.entries(kept)) {
    const tile = $(`kept-${span}`);
    const share = minutes ? Math.floor((1000 * good) / minutes) / 10 : null;
    tile.querySelector(".big").replaceChildren(...(share === null ? [make("span", { className: "unit", textContent: "no chat yet" })] : [`${share}`, make("span", { className: "unit", textContent: "%" })]));
    tile.classList.toggle("is-broken", good < minutes);
    say(tile.querySelector(".small"), minutes ? `${good} of ${minutes} ${minutes === 1 ? "minute" : "minutes"} with chat` : "");
  }
  say($("promise-note"), `A minute is kept if both P99 are within the SLO; where no number is set, if chat takes at most ${slowdown} times as long as it would without jobs, by the engine's account.`);
}

async function read() {
  if (state.isReading) return;
  state.isReading = true;
  const { span } = state;
  try {
    const told = await ask("GET", `/api/history?span=${span}`);
    if (span !== state.span) return;
    state.told = told;
    promise(told);
    draw();
  } catch {
    // The link's own words say that the server does not answer.
  } finally {
    state.isReading = false;
    if (span !== state.span) read();
  }
}

// Called at each look of the server: about once a second while the page is seen.
export function readHistory() {
  if (state.looks % SPANS[state.span] === 0) read();
  state.looks += 1;
}

for (const button of document.querySelectorAll("[data-span]")) {
  button.onclick = () => {
    state.span = button.dataset.span;
    state.looks = 1;
    for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
    read();
  };
}

let width = 0;
new ResizeObserver(() => {
  const now = $("chart-ttft").clientWidth;
  if (now && now !== width) {
    width = now;
    drawAnew();
  }
}).observe($("chart-ttft"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
