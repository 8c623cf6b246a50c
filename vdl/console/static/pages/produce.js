// Write one record.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { live } from "../live.js";
import { offset, time } from "../format.js";
import { to } from "../route.js";
import { button, failure, field, link } from "../ui.js";
import { topicHead } from "./topics.js";

const HEADERS_MAX = 50;

export function showProduce(context) {
  const { path, session } = context;
  const topic = path[1];
  // Texts stay in the elements; here is what changes their number or their meaning.
  const state = { headers: 0, isBusy: false, written: null, error: null };
  return live(context, {
    name: `produce ${topic}`,
    load: (signal) => get("topic", { topic }, signal),
    view: ({ topic: about }, { redraw }) => [
      topicHead(topic, "produce", session),
      session.can_change
        ? form(about, state, redraw)
        : h("p", { class: "box" }, "Changes are switched off on this server (", h("code", {}, "http.console_changes"), ")."),
    ],
  });
}

function form(about, state, redraw) {
  const set = (changes) => {
    Object.assign(state, changes);
    redraw();
  };
  async function submit(event) {
    event.preventDefault();
    if (state.isBusy) return;
    const body = record(about.name, event.target.elements, state.headers);
    set({ isBusy: true, written: null, error: null });
    try {
      set({ isBusy: false, written: await post("records", body) });
    } catch (error) {
      set({ isBusy: false, error });
    }
  }
  return h(
    "form",
    { class: "produce", onsubmit: submit },
    h("p", { class: "note" }, "The record is written at once, and stays until the topic's retention removes it."),
    h(
      "div",
      { class: "together" },
      field("Partition", h("input", { name: "partition", type: "number", min: 0, max: about.partitions - 1, placeholder: "by the key" }), "Empty: the hash of the key decides, as in Java clients."),
      field("Key and value are", h("select", { name: "encoding" }, h("option", { value: "text" }, "text"), h("option", { value: "hex" }, "hex digits"))),
    ),
    withNull("Key", "key", h("textarea", { name: "key", rows: 2, spellcheck: "false" }), true),
    withNull("Value", "value", h("textarea", { name: "value", rows: 8, spellcheck: "false" }), false),
    h(
      "fieldset",
      {},
      h("legend", {}, "Headers"),
      Array.from({ length: state.headers }, (_, at) =>
        h(
          "div",
          { class: "pair" },
          h("input", { name: `header${at}`, "aria-label": `Name of header ${at + 1}`, placeholder: "name", spellcheck: "false" }),
          h("input", { name: `content${at}`, "aria-label": `Value of header ${at + 1}`, placeholder: "value", spellcheck: "false" }),
        ),
      ),
      state.headers < HEADERS_MAX ? button("Add a header", () => set({ headers: state.headers + 1 })) : null,
      state.headers ? button("Remove the last", () => set({ headers: state.headers - 1 })) : null,
    ),
    state.error ? failure(state.error) : null,
    state.written ? success(state.written) : null,
    button(state.isBusy ? "Writing …" : "Write the record", null, { type: "submit", class: "main", disabled: state.isBusy }),
  );
}

function withNull(label, name, control, isNull) {
  return h(
    "div",
    {},
    field(label, control),
    h("label", { class: "toggle" }, h("input", { type: "checkbox", name: `${name}_null`, checked: isNull }), `no ${name} (null)`),
  );
}

function record(topic, elements, headers) {
  const content = (name) => (elements[`${name}_null`].checked && !elements[name].value ? null : elements[name].value);
  return {
    topic,
    partition: elements.partition.value === "" ? null : Number(elements.partition.value),
    key: content("key"),
    value: content("value"),
    encoding: elements.encoding.value,
    headers: Array.from({ length: headers }, (_, at) => ({
      name: elements[`header${at}`].value,
      value: elements[`content${at}`].value,
    })).filter((one) => one.name),
  };
}

function success({ topic, partition, offset: at, timestamp }) {
  return h(
    "div",
    { class: "box ok", role: "status" },
    h(
      "p",
      {},
      "Written to partition ",
      String(partition),
      " at offset ",
      link(to(["topics", topic, "records"], { partition, from: at }), offset(at)),
      `, ${time(timestamp)}.`,
    ),
  );
}
