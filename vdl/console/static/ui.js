// Parts that several pages share.

import { h } from "./dom.js";
import { count, visible } from "./format.js";
import { changed, go } from "./route.js";

const SEARCH_PAUSE_MS = 250;

// Return the heading of a page. `above`: pairs of words and addresses; `actions`: links, buttons.
export function head(title, { above = [], actions = [], note = null } = {}) {
  return h(
    "div",
    { class: "head" },
    above.length
      ? h(
          "p",
          { class: "above" },
          above.map(([words, address]) => [h("a", { href: address }, words), " / "]),
        )
      : null,
    h("h1", { tabindex: "-1" }, visible(title)),
    note ? h("p", { class: "note" }, note) : null,
    actions.length ? h("div", { class: "actions" }, actions) : null,
  );
}

export const button = (words, onclick, props = {}) =>
  h("button", { type: "button", onclick, ...props }, words);

export const link = (address, words, props = {}) => h("a", { href: address, ...props }, words);

// Return a state as a word with a mark: "ok", "warn", "bad" or "off".
export function badge(state, words) {
  return h("span", { class: `badge ${state}` }, words);
}

// Return a name of a client: hostile characters are made visible, long ones are broken.
export const name = (text) => h("span", { class: "name", dir: "ltr" }, visible(text));

export const loading = () => h("p", { class: "loading", key: "loading" }, "Loading …");

export const empty = (words) => h("p", { class: "empty" }, words);

// Return an error in words, with a button to ask again.
export function failure(error, retry) {
  const isAbsent = error.kind === "not_found";
  const canRetry = !["not_found", "forbidden", "bad_request", "read_only"].includes(error.kind);
  return h(
    "div",
    { class: `box ${isAbsent ? "" : "bad"}`, role: "alert", key: "failure" },
    h("p", {}, error.message),
    canRetry && retry ? button("Try again", () => retry()) : null,
  );
}

// Return a number with its name. `state` colours it, with a word for those who see no colour.
export function figure(label, value, { note = "", state = "", address = null } = {}) {
  const shown = address ? link(address, value) : value;
  return h(
    "div",
    { class: `figure ${state}` },
    h("dt", {}, label),
    h("dd", {}, shown, note ? h("small", {}, note) : null),
  );
}

export const figures = (...children) => h("dl", { class: "figures" }, children);

export const section = (title, ...children) =>
  h("section", {}, title ? h("h2", {}, title) : null, children);

// Return a table. A column is {label, cell(row), sort, number, wide}. `key(row)` names a row.
// `order`: {by, way} of the present order, for columns that have `sort`.
export function table({ caption, columns, rows, key, order = null, none = "There are none." }) {
  if (!rows.length) return empty(none);
  return h(
    "div",
    { class: "rows" },
    h(
      "table",
      { role: "table" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((one) => heading(one, order)))),
      h(
        "tbody",
        { role: "rowgroup" },
        rows.map((row, at) =>
          h(
            "tr",
            { key: key ? key(row) : at, role: "row" },
            columns.map((column) => cell(column, row)),
          ),
        ),
      ),
    ),
  );
}

function heading(column, order) {
  const isSorted = order && column.sort === order.by;
  const way = isSorted && order.way === "asc" ? "desc" : "asc";
  const sorted = order?.way === "desc" ? "descending" : "ascending";
  return h(
    "th",
    {
      scope: "col",
      role: "columnheader",
      class: column.number ? "number" : null,
      "aria-sort": isSorted ? sorted : null,
    },
    column.sort && order
      ? link(changed({ sort: column.sort, order: way, page: null }), column.label)
      : column.label,
  );
}

function cell(column, row) {
  const classes = [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ");
  return h(
    "td",
    { role: "cell", class: classes || null, "data-label": column.label },
    column.cell(row),
  );
}

// Return links to the pages of a list. `place`: "above" or "below" the list.
export function pager({ page, pages, total, per_page: perPage }, what, place = "above") {
  if (!total) return null;
  const first = (page - 1) * perPage + 1;
  const last = Math.min(page * perPage, total);
  const turn = (number, words) =>
    number >= 1 && number <= pages
      ? link(changed({ page: number }), words, { class: "button" })
      : h("span", { class: "button is-off", "aria-hidden": "true" }, words);
  return h(
    "nav",
    { class: "pager", "aria-label": `Pages of ${what}, ${place}` },
    h("span", {}, `${count(Math.min(first, last))}–${count(last)} of ${count(total)} ${what}`),
    pages > 1 ? [turn(page - 1, "Previous"), turn(page + 1, "Next")] : null,
  );
}

// Return a field whose text becomes the param `param` of the address after a short pause.
export function search(value, { label, param = "search", type = "search" } = {}) {
  let timer = 0;
  const apply = (text) => go(changed({ [param]: text, page: null }), { replace: true });
  return h(
    "form",
    {
      role: "search",
      class: "search",
      onsubmit(event) {
        event.preventDefault();
        clearTimeout(timer);
        apply(event.target.elements[0].value);
      },
    },
    h("input", {
      type,
      value: value ?? "",
      placeholder: label,
      "aria-label": label,
      "data-search": true,
      autocomplete: "off",
      spellcheck: "false",
      oninput() {
        clearTimeout(timer);
        const { value: text } = this;
        timer = setTimeout(() => apply(text), SEARCH_PAUSE_MS);
      },
    }),
  );
}

// Return a box that sets a param to "true".
export function toggle(label, param, isOn) {
  return h(
    "label",
    { class: "toggle" },
    h("input", {
      type: "checkbox",
      checked: isOn,
      onchange() {
        go(changed({ [param]: this.checked ? "true" : null, page: null }), { replace: true });
      },
    }),
    label,
  );
}

// Return links between the parts of a page: triples of words, address and whether it is shown.
export function tabs(label, parts) {
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    parts.map(([words, address, isShown]) =>
      link(address, words, { "aria-current": isShown ? "page" : null }),
    ),
  );
}

// Return a field with its label. `hint` stands below it.
export function field(label, control, hint = null) {
  return h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
}

// Return the sort of a list from the params of an address.
export const ordered = (params, by) => ({
  by: params.get("sort") ?? by,
  way: params.get("order") ?? "asc",
});

// Return the settings of a server or topic as a table: those that were set come first.
export function settings(rows, only) {
  const shown = rows.filter((one) => !only || one.name.includes(only));
  const isDefault = (one) => one.source === "default";
  shown.sort((a, b) => isDefault(a) - isDefault(b) || (a.name < b.name ? -1 : 1));
  return table({
    caption: "Settings",
    rows: shown,
    key: (one) => one.name,
    none: "There are no such settings.",
    columns: [
      {
        label: "Name",
        wide: true,
        cell: (one) => [
          h("code", {}, one.name),
          one.documentation ? h("details", {}, h("summary", {}, "Meaning"), h("p", {}, one.documentation)) : null,
        ],
      },
      {
        label: "Value",
        wide: true,
        cell: (one) => (one.is_sensitive ? h("em", {}, "hidden") : h("code", {}, one.value === null || one.value === "" ? "–" : visible(one.value))),
      },
      { label: "Source", cell: (one) => (isDefault(one) ? "default" : badge("info", one.source)) },
    ],
  });
}
