// Records of one partition: where to begin, a filter by key, folding, next and previous.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, counted, offset, time, utc } from "../format.js";
import { live } from "../live.js";
import { changed, go } from "../route.js";
import { button, empty, field, link } from "../ui.js";
import { preview, whole } from "../values.js";
import { topicHead } from "./topics.js";

const FOLLOW_SECONDS = 2;
const COUNTS = [10, 25, 50, 100, 200];
const BEGINNINGS = [["end", "the newest"], ["start", "the oldest"], ["offset", "an offset"], ["time", "a time"]];
const FORMS = [["auto", "as it is"], ["json", "JSON"], ["text", "text"], ["hex", "hex"]];

export function showRecords(context) {
  const { path, params, session } = context;
  const topic = path[1];
  const isFollowed = params.get("follow") === "true";
  const query = {
    topic,
    partition: params.get("partition") ?? 0,
    from: isFollowed ? "end" : params.get("from") ?? "end",
    count: params.get("count"),
    key: params.get("key"),
    key_is: params.get("key") ? params.get("key_is") : null,
    form: params.get("form"),
    isolation: params.get("isolation"),
  };
  const open = new Set(); // offsets of records that are shown whole
  return live(context, {
    name: `records ${topic}`,
    every: isFollowed ? FOLLOW_SECONDS : 0,
    load: async (signal) => {
      const [about, found] = await Promise.all([
        get("topic", { topic }, signal),
        get("records", query, signal).catch((error) => ({ error })),
      ]);
      if (found.error && found.error.kind !== "bad_request") throw found.error;
      return { about: about.topic, found };
    },
    view: ({ about, found }, { redraw }) => [
      topicHead(topic, "records", session),
      choices(about, query, params, isFollowed),
      found.error
        ? h("div", { class: "box bad", role: "alert" }, h("p", {}, found.error.message))
        : [
            position(found, query),
            recordTable(found, open, redraw),
            found.records.length > 10 ? turns(found, "below") : null,
          ],
    ],
  });
}

// The form has its own elements for each kind of beginning; only the shown one counts.
function choices(about, query, params, isFollowed) {
  const [kind, value] = beginning(query.from);
  const apply = (event) => {
    event.preventDefault();
    const chosen = event.currentTarget.elements ?? event.currentTarget.form.elements;
    const from = begin(chosen.kind.value, chosen.offset?.value, chosen.time?.value);
    if (from === null) return;
    go(changed({
      partition: chosen.partition.value,
      from,
      count: chosen.count.value,
      form: chosen.form.value,
      key: chosen.key.value,
      key_is: chosen.key.value && chosen.exact.checked ? "exact" : null,
      isolation: chosen.uncommitted.checked ? "uncommitted" : null,
      follow: chosen.follow.checked ? "true" : null,
    }));
  };
  const onchange = apply;
  const select = (name, chosen, options) =>
    h("select", { name, onchange, value: String(chosen) }, options.map(([key, words]) => h("option", { value: key }, words)));
  return h(
    "form",
    { class: "choices", onsubmit: apply },
    field("Partition", h("input", { name: "partition", type: "number", min: 0, max: about.partitions - 1, value: String(query.partition), onchange })),
    field("Begin at", h("select", { name: "kind", onchange: chooseKind, value: kind }, BEGINNINGS.map(([key, words]) => h("option", { value: key }, words)))),
    h("label", { class: `field ${kind === "offset" ? "" : "is-hidden"}`, key: "offset" }, h("span", {}, "Offset"), h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]*", size: 12, value: kind === "offset" ? value : "", onchange })),
    h("label", { class: `field ${kind === "time" ? "" : "is-hidden"}`, key: "time" }, h("span", {}, "Time"), h("input", { name: "time", type: "datetime-local", step: 1, value: kind === "time" ? local(value) : "", onchange })),
    field("Records", select("count", query.count ?? 50, COUNTS.map((one) => [one, one]))),
    field("Shown as", select("form", query.form ?? "auto", FORMS)),
    field("Key contains", h("input", { name: "key", value: query.key ?? "", autocomplete: "off", spellcheck: "false", "data-search": true, onchange })),
    h(
      "span",
      { class: "toggles" },
      box("whole key", "exact", query.key_is === "exact", onchange),
      box("uncommitted too", "uncommitted", query.isolation === "uncommitted", onchange),
      box("follow", "follow", isFollowed, onchange),
    ),
    button("Show", null, { type: "submit", class: "main" }),
  );
}

const box = (words, name, checked, onchange) =>
  h("label", { class: "toggle" }, h("input", { type: "checkbox", name, checked, onchange }), words);

// Show the field of the chosen beginning; the other ones need no second field.
function chooseKind(event) {
  const { form, value } = event.currentTarget;
  for (const kind of ["offset", "time"]) {
    form.elements[kind].closest(".field").classList.toggle("is-hidden", kind !== value);
  }
  if (value === "offset" || value === "time") form.elements[value].focus();
  else form.requestSubmit();
}

function beginning(from) {
  if (from === "start" || from === "end") return [from, ""];
  return from.startsWith("@") ? ["time", from.slice(1)] : ["offset", from];
}

function begin(kind, at, when) {
  if (kind === "offset") return /^\d+$/.test(at) ? at : null;
  if (kind !== "time") return kind;
  const milliseconds = new Date(when).getTime();
  return Number.isNaN(milliseconds) ? null : `@${milliseconds}`;
}

// Return milliseconds as the field for a local time wants them.
function local(milliseconds) {
  const date = new Date(Number(milliseconds));
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function position(found, query) {
  const { records, start, end, scanned, is_complete: isComplete } = found;
  const range = records.length
    ? `Offsets ${offset(records[0].offset)} to ${offset(records.at(-1).offset)}`
    : "No records";
  return h(
    "div",
    { class: "tools" },
    h("span", {}, `${range}. The partition has ${offset(start)} to ${offset(end)} (end).`),
    query.key ? h("span", {}, `${counted(scanned, "record")} searched.`) : null,
    isComplete ? null : h("span", { class: "badge warn" }, "the search goes on with Next"),
    turns(found),
  );
}

function turns({ previous, next }, place = "above") {
  const turn = (from, words) =>
    from === null
      ? h("span", { class: "button is-off", "aria-hidden": "true" }, words)
      : link(changed({ from, follow: null }), words, { class: "button" });
  return h("nav", { class: "pager", "aria-label": `Pages of records, ${place}` }, turn(previous, "Previous"), turn(next, "Next"));
}

function recordTable(found, open, redraw) {
  const { records, start, end } = found;
  if (!records.length) {
    const isEmpty = start === end;
    return empty(isEmpty ? "The partition is empty." : "There are no records here. Previous and Next, or another beginning, may have some.");
  }
  const turnOver = (one) => {
    if (!open.delete(one.offset)) open.add(one.offset);
    redraw();
  };
  return h(
    "div",
    { class: "rows" },
    h(
      "table",
      { class: "records", role: "table" },
      h("caption", { class: "unseen" }, "Records"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["Offset", "Time", "Key", "Value", "Size"].map((label) =>
        h("th", { scope: "col", role: "columnheader", class: label === "Offset" || label === "Size" ? "number" : null }, label)))),
      h("tbody", { role: "rowgroup" }, records.flatMap((one) => rows(one, open.has(one.offset), () => turnOver(one)))),
    ),
  );
}

function rows(one, isOpen, turnOver) {
  const cell = (label, content, props = {}) => h("td", { role: "cell", "data-label": label, ...props }, content);
  const mark = button(offset(one.offset), turnOver, { class: "turn", "aria-expanded": isOpen ? "true" : "false", title: "Show the whole record" });
  const row = h(
    "tr",
    { key: one.offset, role: "row", class: isOpen ? "is-open" : null },
    cell("Offset", mark, { class: "number" }),
    cell("Time", h("time", { title: utc(one.timestamp) }, time(one.timestamp))),
    cell("Key", preview(one.key), { class: "wide" }),
    cell("Value", preview(one.value), { class: "wide main" }),
    cell("Size", bytes(total(one)), { class: "number" }),
  );
  if (!isOpen) return [row];
  return [row, h("tr", { key: `${one.offset} whole`, role: "row", class: "whole" }, h("td", { role: "cell", colspan: 5 }, details(one)))];
}

function details(one) {
  const part = (title, ...content) => h("section", {}, h("h2", {}, title), content);
  return h(
    "div",
    { class: "record" },
    h(
      "p",
      { class: "note" },
      `${one.timestamp_type === "append" ? "Appended" : "Created"} ${utc(one.timestamp)} · compression ${one.compression} · `,
      link(changed({ from: one.offset, follow: null }), "link to this record"),
    ),
    part(`Key${size(one.key)}`, whole(one.key)),
    part(`Value${size(one.value)}`, whole(one.value)),
    one.headers_left_out === null ? part("Headers", h("p", { class: "note" }, "They are not known, because key or value is too long.")) : null,
    one.headers.length || one.headers_left_out
      ? part(
          `Headers, ${count(one.headers.length + one.headers_left_out)}`,
          h("dl", { class: "headers" }, one.headers.map((header) => [h("dt", {}, preview(header.name)), h("dd", {}, whole(header.value))])),
          one.headers_left_out ? h("p", { class: "note" }, `${counted(one.headers_left_out, "header")} more.`) : null,
        )
      : null,
  );
}

// Return the size of key and value; null if one is not known.
function total({ key, value }) {
  const sizes = [key, value].filter((part) => part !== null).map((part) => part.bytes);
  return sizes.includes(null) ? null : sizes.reduce((sum, one) => sum + Number(one), 0);
}

const size = (value) => (value === null ? "" : `, ${bytes(value.bytes)}`);
