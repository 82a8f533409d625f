"use strict";
// Sorting: heads become buttons, so that a keyboard reaches them and a page without scripts still reads.
const said = document.getElementById("said");

// A cell's key: [rank, number or text]. Measured numbers come before published ones, which stand in
// parentheses, then words; cells without a value stay last in either direction.
function key(cell) {
  const text = cell.textContent.trim();
  if (text === "—" || text === "") return [3, 0];
  const number = parseFloat(text.replace("(", "").replaceAll(",", "").replace("−", "-"));
  if (Number.isNaN(number) || !/^[(+−-]?[\d.]/.test(text)) return [2, text];
  return [text.startsWith("(") ? 1 : 0, number];
}

function sort(table, index, button) {
  const head = button.closest("th");
  const order = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  const sign = order === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[index]), row]);
  rows.sort(([[rankA, a]], [[rankB, b]]) => {
    if (rankA !== rankB) return rankA - rankB;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  });
  body.append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  said.textContent = `${table.caption.textContent}: sorted by ${button.textContent}, ${order}`;
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, index, button));
    head.append(button);
  });
}

// A link to a folded part opens it.
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", unfold);
if (location.hash) unfold();

// On paper nothing can be unfolded, so everything is.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
