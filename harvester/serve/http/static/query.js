// SQL

import { $, milliseconds, plural, say, sql } from "./base.js";
import { dataTable } from "./tables.js";

$("sql-form").onsubmit = async (event) => {
  event.preventDefault();
  const query = $("query").value.trim();
  say($("sql-fault"), query ? "" : "Write a query first.");
  if (!query || $("run").disabled) return;
  $("run").disabled = true;
  say($("sql-note"), "Running");
  const began = performance.now();
  try {
    const answer = await sql(query, 500);
    $("answer").replaceChildren(dataTable(answer, "Answer of the query"));
    $("answer").hidden = false;
    say($("sql-note"), `${plural(answer.rows.length, "row")}${answer.is_cut ? ", there are more" : ""}, ${milliseconds(performance.now() - began).join(" ")}`);
  } catch (error) {
    $("answer").hidden = true;
    say($("sql-note"), "");
    say($("sql-fault"), error.message);
  } finally {
    $("run").disabled = false;
  }
};
$("query").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("sql-form").requestSubmit();
};

// Put a query into the box, for the reader to run.
export function offer(query) {
  $("query").value = query;
  $("query").focus();
}
