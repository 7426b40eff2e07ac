// Tables of an answer

import { make } from "./base.js";

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function isNumeric(values) {
  const known = values.filter((value) => value !== null);
  return known.length > 0 && known.every((value) => /^-?\d+(\.\d+)?$/.test(shown(value)));
}

export function dataTable({ columns, rows }, caption) {
  const isNumber = columns.map(({ type }, at) => /^(u?int|float|double|decimal)/.test(type) || isNumeric(rows.map((row) => row[at])));
  const isLong = columns.map((_, at) => rows.some((row) => row[at] !== null && shown(row[at]).length > 32));
  const cell = (value, at) => {
    const kind = isNumber[at] ? "n" : isLong[at] ? "text" : "";
    if (value === null) return make("td", { className: `null ${kind}`, textContent: "null" });
    return make("td", { className: kind }, make("div", { className: "clip", textContent: shown(value) }));
  };
  return make(
    "table",
    { className: "data" },
    make("caption", { className: "unseen", textContent: caption }),
    make("thead", {}, make("tr", {}, ...columns.map(({ name }, at) => make("th", { scope: "col", className: isNumber[at] ? "n" : "", textContent: name })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))),
  );
}
