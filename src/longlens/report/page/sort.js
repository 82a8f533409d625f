"use strict";
// Sorting: heads become buttons, so that a keyboard reaches them and a page without scripts still reads.
const said = document.getElementById("said");

// A cell's key: [rank, number or text]. Cells without a value stay last in either direction.
function key(cell) {
  if (cell.dataset.rank !== undefined) {
    return [Number(cell.dataset.rank), Number(cell.dataset.value ?? 0)];
  }
  const text = cell.textContent.trim();
  if (text === "—" || text === "") return [3, 0];
  const number = parseFloat(text.replaceAll(",", "").replace("−", "-"));
  return /^[+−-]?[\d.]/.test(text) && !Number.isNaN(number) ? [1, number] : [2, text];
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

// On paper nothing can be unfolded, so everything is.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
