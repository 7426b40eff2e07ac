// What each replica does now: a row of tiles

import { $, make, milliseconds, percent, plural, say, whole } from "./base.js";

const SVG_POINTS = 120;
const JUMP_S = 5; // between two looks: their figures are not of one line
const replicas = new Map(); // id -> {node, number, at_s, past}

function big(tile, parts) {
  const node = tile.querySelector(".big");
  if (parts === null) return node.replaceChildren(make("span", { className: "unit", textContent: "none yet" }));
  node.replaceChildren(parts[0], make("span", { className: "unit", textContent: parts[1] }));
}

// A line ends where a value is missing, and begins anew behind it.
function pieces(values) {
  const found = [];
  values.forEach((value, at) => {
    if (value === null) return;
    if (at === 0 || values[at - 1] === null) found.push([]);
    found.at(-1).push({ value, at });
  });
  return found;
}

function drawLine(tile, values, top, slo) {
  const y = (value) => (27 - 26 * Math.min(1, value / top)).toFixed(1);
  const x = (at) => (120 - (values.length - 1 - at) * (120 / (SVG_POINTS - 1))).toFixed(1);
  const draw = (name, path) => tile.querySelector(name)?.setAttribute("d", pieces(values).map(path).join(""));
  const points = (piece) => piece.map(({ value, at }) => `${x(at)},${y(value)}`).join("L");
  draw(".curve", (piece) => `M${points([...piece, piece.at(-1)])}`); // one value alone is a dot
  draw(".area", (piece) => `M${x(piece[0].at)},28L${points(piece)}L${x(piece.at(-1).at)},28Z`);
  const line = tile.querySelector(".slo");
  if (!line) return;
  line.setAttribute("visibility", slo !== null && slo <= top ? "visible" : "hidden");
  line.setAttribute("y1", y(slo));
  line.setAttribute("y2", y(slo));
}

function drawLatency(tile, latency, past) {
  big(tile, milliseconds(latency.p50));
  const small = tile.querySelector(".small");
  const slo = milliseconds(latency.slo)?.join(" ");
  const alone = latency.slowdown === null ? "" : `, ${latency.slowdown} times as long as without jobs`;
  if (latency.p99 === null) {
    say(small, slo ? `P50. No chat in the last minute; the SLO is ${slo}.` : "P50. No chat in the last minute.");
  } else if (slo) {
    const isOver = latency.p99 > latency.slo;
    const tail = `${milliseconds(latency.p99).join(" ")}, ${isOver ? "above" : "within"}`;
    small.replaceChildren("P50. P99 ", make("span", { className: isOver ? "over" : "", textContent: tail }), ` ${slo}${alone}`);
  } else {
    say(small, `P50. P99 ${milliseconds(latency.p99).join(" ")}${alone}`);
  }
  past.push(latency.p50);
  if (past.length > SVG_POINTS) past.shift();
  const most = Math.max(...past.filter((value) => value !== null), 0);
  drawLine(tile, past, Math.max(most * 1.15, 1), latency.slo);
}

function drawReplica(entry, now) {
  const tile = (name) => entry.node.querySelector(`[data-tile="${name}"]`);
  const wrong = entry.node.querySelector(".wrong");
  wrong.hidden = !now.wrong.length;
  say(wrong, now.wrong.join(". "));
  drawLatency(tile("ttft"), now.ttft, entry.past.ttft);
  drawLatency(tile("tpot"), now.tpot, entry.past.tpot);
  const share = now.harvested_time;
  const harvest = tile("harvest");
  big(harvest, share === null ? null : [percent(share), "%"]);
  const idle = share === null ? null : Math.max(0, 1 - now.busy_time);
  const tokens = now.harvested_tokens === null ? "" : `${percent(now.harvested_tokens)}% of tokens. `;
  say(harvest.querySelector(".small"), share === null ? "" : `${tokens}With chat ${percent(Math.max(0, now.busy_time - share))}%, idle ${percent(idle)}%`);
  entry.past.harvest.push(share);
  if (entry.past.harvest.length > SVG_POINTS) entry.past.harvest.shift();
  drawLine(harvest, entry.past.harvest, 1, null);
  const kv = tile("kv");
  big(kv, [percent(now.kv_used), "%"]);
  say(kv.querySelector(".small"), `${plural(now.ended_steps, "step")} ended early for a chat`);
  kv.querySelector("meter").value = now.kv_used;
  for (const work of ["online", "offline"]) {
    const cells = entry.node.querySelectorAll(`[data-work="${work}"] td`);
    const { running, waiting, tokens_per_s: rate } = now[work];
    [running, waiting, rate ?? 0].forEach((value, at) => say(cells[at], whole(value)));
  }
}

// A replica keeps its number for as long as it is shown; the next takes the first that is free.
function enter(now) {
  const taken = [...replicas.values()];
  let number = 1;
  while (taken.some((other) => other.number === number)) number += 1;
  const node = $("replica-template").content.firstElementChild.cloneNode(true);
  const behind = taken.filter((other) => other.number > number).sort((one, other) => one.number - other.number);
  $("replicas").insertBefore(node, behind[0]?.node ?? null);
  const entry = { node, number, at_s: now.at_s, past: { ttft: [], tpot: [], harvest: [] } };
  replicas.set(now.id, entry);
  return entry;
}

export function showReplicas(list) {
  const box = $("replicas");
  for (const [id, entry] of replicas) {
    if (!list.some((now) => now.id === id)) {
      entry.node.remove();
      replicas.delete(id);
    }
  }
  if (!list.length) return box.replaceChildren(make("p", { className: "empty", textContent: "No replica runs yet." }));
  box.querySelector(".empty")?.remove();
  for (const now of list) {
    const entry = replicas.get(now.id) ?? enter(now);
    if (Math.abs(now.at_s - entry.at_s) > JUMP_S) for (const values of Object.values(entry.past)) values.length = 0;
    entry.at_s = now.at_s;
    const of = now.model ? ` of ${now.model}` : "";
    say(entry.node.querySelector("h3"), list.length === 1 ? `Replica ${now.id}` : `Replica ${entry.number}${of}, ${now.id}`);
    drawReplica(entry, now);
  }
}
